"""Jobs in a real store: what a job is follows from its keys, and only who holds it writes."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest
from redis.asyncio import Redis

from programs.errors import LeaseLostError, StoreUnavailableError, UnknownJobError
from programs.jobs.job import Cancelled, Failed, JobError, JobSpec, Succeeded, new_job_id
from programs.jobs.store import JobStore, Lease, NotClaimed
from programs.runtime.context import Progress
from programs.store import connect

DONE = Succeeded(b'{"answer":42}', b"{}")


@pytest.fixture
def jobs(redis: Redis) -> JobStore:
    return JobStore(redis, ttl_s=3600, lease_s=60)


def spec(created: float | None = None) -> JobSpec:
    return JobSpec(new_job_id(), "echo", "v1", b"{}", time.time() if created is None else created)


async def claimed(jobs: JobStore, job: str, token: str = "a") -> Lease:
    lease = await jobs.claim(job, token)
    assert isinstance(lease, Lease)
    return lease


async def expire_lease(redis: Redis, job: str) -> None:
    assert await redis.delete(f"antiphon:{{{job}}}:lease") == 1


async def test_a_job_is_queued_then_running_then_ended(jobs: JobStore) -> None:
    one = spec()
    assert (await jobs.submit(one)).state == "queued"
    assert (await jobs.get(one.id)).state == "queued"
    lease = await claimed(jobs, one.id)
    running = await jobs.get(one.id)
    assert (running.state, running.spec, running.outcome, running.ended) == ("running", one, None, None)
    assert running.started is not None
    await jobs.finish(lease, DONE, 5.0, Progress(3, 3, "done"))
    ended = await jobs.get(one.id)
    assert (ended.state, ended.outcome, ended.ended) == ("succeeded", DONE, 5.0)
    assert (ended.progress, ended.started) == (Progress(3, 3, "done"), running.started)


async def test_a_failure_says_why(jobs: JobStore) -> None:
    one = spec()
    await jobs.submit(one)
    error = JobError("engine_refused", "too long")
    await jobs.finish(await claimed(jobs, one.id), Failed(error), 1.0, None)
    job = await jobs.get(one.id)
    assert (job.state, job.error) == ("failed", error)


async def test_a_job_that_is_not_there_is_unknown(jobs: JobStore) -> None:
    for call in (jobs.get, jobs.cancel):
        with pytest.raises(UnknownJobError, match="job_none"):
            await call("job_none")
    assert await jobs.claim("job_none", "a") == NotClaimed(None)


async def test_a_job_is_claimed_by_one(jobs: JobStore) -> None:
    one = spec()
    await jobs.submit(one)
    await claimed(jobs, one.id, "a")
    assert await jobs.claim(one.id, "b") == NotClaimed("running")


async def test_a_claim_whose_answer_was_lost_may_be_repeated(jobs: JobStore) -> None:
    one = spec()
    await jobs.submit(one)
    assert await claimed(jobs, one.id) == await claimed(jobs, one.id)


async def test_who_lost_its_lease_to_another_stores_nothing_any_more(jobs: JobStore, redis: Redis) -> None:
    one = spec()
    await jobs.submit(one)
    paused = await claimed(jobs, one.id, "a")
    await expire_lease(redis, one.id)
    heir = await claimed(jobs, one.id, "b")
    with pytest.raises(LeaseLostError, match="another worker"):
        await jobs.put_step(paused, "d", b"late")
    with pytest.raises(LeaseLostError):
        await jobs.beat(paused, Progress(9, 9, ""))
    with pytest.raises(LeaseLostError):
        await jobs.finish(paused, DONE, 1.0, None)
    await jobs.release(paused)
    job = await jobs.get(one.id)
    assert (job.state, job.progress) == ("running", Progress(0, 0))
    assert await jobs.step(heir, "d") is None
    await jobs.finish(heir, Failed(JobError("x", "y")), 2.0, None)
    assert (await jobs.get(one.id)).state == "failed"


async def test_a_lease_that_ran_out_unnoticed_is_taken_up_again(jobs: JobStore, redis: Redis) -> None:
    one = spec()
    await jobs.submit(one)
    lease = await claimed(jobs, one.id)
    await expire_lease(redis, one.id)
    assert (await jobs.get(one.id)).state == "queued"
    await jobs.beat(lease, Progress(1, 2, "half"))
    job = await jobs.get(one.id)
    assert (job.state, job.progress) == ("running", Progress(1, 2, "half"))


async def test_a_step_is_stored_once(jobs: JobStore, redis: Redis) -> None:
    one = spec()
    await jobs.submit(one)
    first = await claimed(jobs, one.id, "a")
    assert await jobs.put_step(first, "d", b"first") == b"first"
    assert await jobs.put_step(first, "d", b"second") == b"first"
    await expire_lease(redis, one.id)
    heir = await claimed(jobs, one.id, "b")
    assert await jobs.step(heir, "d") == b"first"
    assert await jobs.put_step(heir, "d", b"third") == b"first"


@pytest.mark.parametrize("how", ["finished", "cancelled"])
async def test_steps_are_not_kept_for_as_long_as_the_job_they_are_of(jobs: JobStore, redis: Redis, how: str) -> None:
    one = spec()
    await jobs.submit(one)
    lease = await claimed(jobs, one.id)
    await jobs.put_step(lease, "d", b"output")
    steps, outcome = (f"antiphon:{{{one.id}}}:{name}" for name in ("steps", "outcome"))
    assert await redis.ttl(steps) > 600
    await (jobs.cancel(one.id) if how == "cancelled" else jobs.finish(lease, DONE, 1.0, None))
    assert 0 < await redis.ttl(steps) <= 600 < await redis.ttl(outcome)


async def test_an_outcome_is_stored_once(jobs: JobStore) -> None:
    one = spec()
    await jobs.submit(one)
    lease = await claimed(jobs, one.id)
    await jobs.finish(lease, DONE, 1.0, None)
    await jobs.finish(lease, DONE, 1.0, None)  # its answer may not have been heard
    with pytest.raises(LeaseLostError, match="has ended"):
        await jobs.finish(lease, Failed(JobError("x", "y")), 2.0, None)
    with pytest.raises(LeaseLostError, match="has ended"):
        await jobs.put_step(lease, "d", b"late")
    assert (await jobs.get(one.id)).outcome == DONE
    assert await jobs.claim(one.id, "b") == NotClaimed("succeeded")


async def test_a_cancelled_job_has_ended_whatever_runs_it(jobs: JobStore) -> None:
    queued, running, done = spec(), spec(), spec()
    for one in (queued, running, done):
        await jobs.submit(one)
    lease = await claimed(jobs, running.id)
    await jobs.finish(await claimed(jobs, done.id), DONE, 1.0, None)
    assert (await jobs.cancel(queued.id)).state == "cancelled"
    assert (await jobs.cancel(running.id)).outcome == Cancelled()
    assert (await jobs.cancel(done.id)).state == "succeeded"
    with pytest.raises(LeaseLostError, match="has ended"):
        await jobs.beat(lease, None)
    with pytest.raises(LeaseLostError, match="has ended"):
        await jobs.finish(lease, DONE, 1.0, None)
    assert await jobs.claim(queued.id, "b") == NotClaimed("cancelled")


async def test_deliveries_are_counted_until_the_job_gets_on(jobs: JobStore, redis: Redis) -> None:
    one = spec()
    await jobs.submit(one)
    leases = []
    for token in "abc":
        leases.append(await claimed(jobs, one.id, token))
        await expire_lease(redis, one.id)
    await jobs.put_step(leases[-1], "d", b"x")
    leases.append(await claimed(jobs, one.id, "d"))
    assert [lease.deliveries for lease in leases] == [1, 2, 3, 1]


async def test_a_job_handed_back_is_claimed_at_once_and_counts_no_death(jobs: JobStore) -> None:
    one = spec()
    await jobs.submit(one)
    await jobs.release(await claimed(jobs, one.id, "a"))
    assert (await jobs.get(one.id)).state == "queued"
    assert (await claimed(jobs, one.id, "b")).deliveries == 1


async def test_jobs_are_listed_newest_first_in_pages(jobs: JobStore) -> None:
    now = time.time()
    specs = [spec(now + number) for number in range(5)]
    for one in specs:
        await jobs.submit(one)
    first, more = await jobs.list(2)
    second, still_more = await jobs.list(2, first[-1].id)
    last, no_more = await jobs.list(2, second[-1].id)
    listed = [job.spec for job in (*first, *second, *last)]
    assert (listed, more, still_more, no_more) == ([*reversed(specs)], True, True, False)
    with pytest.raises(UnknownJobError):
        await jobs.list(2, "job_none")


async def test_a_submission_that_is_repeated_is_one_job(jobs: JobStore) -> None:
    one = spec()
    await jobs.submit(one)
    await jobs.submit(one)
    assert len(await jobs.queue.read("w", 10, 0.01)) == 0  # the first look makes the group
    assert [message.job for message in await jobs.queue.read("w", 10, 0.01)] == [one.id]


async def test_every_key_has_a_time_to_live(jobs: JobStore, redis: Redis) -> None:
    one, other = spec(), spec()
    for submitted in (one, other):
        await jobs.submit(submitted)
    await jobs.queue.read("w", 10, 0.01)
    messages = await jobs.queue.read("w", 10, 0.01)
    lease = await claimed(jobs, one.id)
    await jobs.put_step(lease, "d", b"x")
    await jobs.beat(lease, Progress(1, 1, ""))
    await jobs.queue.hold("w", [messages[0].id])
    await jobs.finish(lease, DONE, 1.0, None)
    await jobs.queue.done(messages[0].id, "succeeded")
    await claimed(jobs, other.id)
    left = {key: await redis.ttl(key) for key in await redis.keys("*")}
    assert len(left) == 11
    assert [key for key, ttl in left.items() if not 0 < ttl <= 7200] == []


async def test_changes_are_told_until_the_job_has_ended(jobs: JobStore) -> None:
    one = spec()
    await jobs.submit(one)
    changes = jobs.changes(one.id)
    assert (await anext(changes)).state == "queued"
    lease = await claimed(jobs, one.id)
    assert (await anext(changes)).state == "running"
    await jobs.beat(lease, Progress(1, 4, "reading"))
    assert (await anext(changes)).progress == Progress(1, 4, "reading")
    await jobs.finish(lease, DONE, 1.0, None)
    assert [job.state async for job in changes] == ["succeeded"]


async def test_a_store_that_is_away_is_said_to_be() -> None:
    redis = connect("redis://127.0.0.1:9")
    jobs = JobStore(redis, ttl_s=1, lease_s=1)
    lease = Lease(spec(), "a", 1, 1)
    for call in (
        jobs.submit(lease.spec),
        jobs.get("x"),
        jobs.list(1),
        jobs.cancel("x"),
        jobs.claim("x", "a"),
        jobs.beat(lease, None),
        jobs.put_step(lease, "d", b""),
        jobs.finish(replace(lease), DONE, 1.0, None),
        jobs.queue.read("w", 1, 0.01),
        jobs.queue.reclaim("w", 1),
        jobs.queue.hold("w", []),
        jobs.queue.done("0-1", None),
        jobs.queue.counts(),
    ):
        with pytest.raises(StoreUnavailableError):
            await call
    await redis.aclose()
