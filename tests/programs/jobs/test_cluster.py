"""Jobs on a server of a Cluster, which refuses whatever touches the keys of two slots at once."""

from __future__ import annotations

import pytest
from redis.exceptions import ResponseError

from programs.jobs.job import JobSpec
from programs.runtime.steps import StepStore
from programs.store import connect
from tests.programs.jobs.running import ended, running, store_of, submitted, until_drained


async def test_jobs_are_submitted_run_listed_and_cancelled_on_a_cluster(cluster_url: str) -> None:
    cluster = connect(cluster_url)
    with pytest.raises(ResponseError, match="same slot"):
        await cluster.mset({"a": 1, "b": 1})
    jobs = store_of(cluster)

    async def stepping(spec: JobSpec, steps: StepStore) -> bytes:
        return await steps.put("d", b"1")

    cancelled = await submitted(jobs)
    await jobs.cancel(cancelled)
    ids = [await submitted(jobs) for _ in range(3)]
    async with running(jobs, stepping):
        assert [(await ended(jobs, job)).state for job in ids] == ["succeeded"] * 3
        await until_drained(jobs)
    listed, _ = await jobs.list(10)
    assert {job.id: job.state for job in listed} == {cancelled: "cancelled", **dict.fromkeys(ids, "succeeded")}
    assert (await jobs.queue.counts()).ended == {"succeeded": 3, "failed": 0, "cancelled": 1}
    await cluster.aclose()
