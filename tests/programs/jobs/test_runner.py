"""A runner over a real store: what it takes, what it tries again, what it gives up, what it hands back."""

from __future__ import annotations

import asyncio
import time

import pytest
from redis.asyncio import Redis

from programs.errors import LeaseLostError, UnknownDocumentError
from programs.jobs.job import Failed, JobError, JobSpec, Succeeded
from programs.jobs.run import JobLimits, JobRun
from programs.jobs.store import Lease
from programs.runtime.steps import StepStore
from router.errors import EngineRefusedError, EngineUnavailableError, QueueFullError
from tests.programs.jobs.running import ended, running, store_of, submitted, until_drained, until_state

DONE = Succeeded(b"1", b"{}")


async def one(spec: JobSpec, steps: StepStore) -> bytes:
    return b"1"


async def for_ever(spec: JobSpec, steps: StepStore) -> bytes:
    await asyncio.Event().wait()
    return b"never"


async def test_it_runs_as_many_at_once_as_it_may_and_leaves_nothing_in_the_queue(redis: Redis) -> None:
    jobs = store_of(redis)
    now = most = 0

    async def counted(spec: JobSpec, steps: StepStore) -> bytes:
        nonlocal now, most
        now += 1
        most = max(most, now)
        await asyncio.sleep(0.02)
        now -= 1
        return spec.parameters

    ids = [await submitted(jobs, parameters=b"%d" % number) for number in range(20)]
    async with running(jobs, counted, at_once=3):
        outcomes = [(await ended(jobs, job)).outcome for job in ids]
        await until_drained(jobs)
    assert outcomes == [Succeeded(b"%d" % number, b"{}") for number in range(20)]
    assert most == 3
    assert (await jobs.queue.counts()).ended == {"succeeded": 20, "failed": 0, "cancelled": 0}


async def test_what_may_pass_is_tried_again_and_steps_are_there_then(redis: Redis) -> None:
    jobs = store_of(redis)
    computed = []

    async def at_the_third_try(spec: JobSpec, steps: StepStore) -> bytes:
        computed.append(await steps.get("d"))
        await steps.put("d", b"stored")
        if len(computed) < 3:
            raise EngineUnavailableError("no engine")
        return b"1"

    job = await submitted(jobs)
    async with running(jobs, at_the_third_try):
        assert (await ended(jobs, job)).outcome == DONE
    assert computed == [None, b"stored", b"stored"]


async def test_what_does_not_pass_is_given_up(redis: Redis) -> None:
    jobs = store_of(redis)
    tries = 0

    async def full(spec: JobSpec, steps: StepStore) -> bytes:
        nonlocal tries
        tries += 1
        raise QueueFullError("too much waits", 1.0)

    job = await submitted(jobs)
    async with running(jobs, full, limits=JobLimits(attempts=3, first_pause_s=0.001)):
        assert (await ended(jobs, job)).outcome == Failed(JobError("queue_full", "too much waits"))
    assert tries == 3


async def test_failures_count_anew_once_a_step_is_stored(redis: Redis) -> None:
    jobs = store_of(redis)
    tries = 0

    async def slowly(spec: JobSpec, steps: StepStore) -> bytes:
        nonlocal tries
        tries += 1
        await steps.put(str(tries), b"x")
        if tries < 10:
            raise EngineUnavailableError("no engine")
        return b"1"

    job = await submitted(jobs)
    async with running(jobs, slowly, limits=JobLimits(attempts=2, first_pause_s=0.001)):
        assert (await ended(jobs, job)).outcome == DONE


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (EngineRefusedError("too long"), JobError("engine_refused", "too long")),
        (UnknownDocumentError("no doc_1"), JobError("unknown_document", "no doc_1")),
        (ZeroDivisionError("by zero"), JobError("program_failed", "ZeroDivisionError: by zero")),
        (TimeoutError("mine"), JobError("program_failed", "TimeoutError: mine")),
        (asyncio.CancelledError(), JobError("program_failed", "it cancelled itself")),
    ],
)
async def test_what_is_the_jobs_own_fault_is_not_tried_again(
    redis: Redis, error: BaseException, expected: JobError
) -> None:
    jobs = store_of(redis)
    tries = 0

    async def failing(spec: JobSpec, steps: StepStore) -> bytes:
        nonlocal tries
        tries += 1
        raise error

    job = await submitted(jobs, deadline_s=60)
    async with running(jobs, failing):
        assert (await ended(jobs, job)).outcome == Failed(expected)
    assert tries == 1


async def test_a_job_of_a_dead_worker_is_taken_over_though_nothing_new_comes(redis: Redis) -> None:
    jobs = store_of(redis, lease_s=0.3)
    job = await submitted(jobs)
    await jobs.queue.read("dead", 1, 0.01)
    (message,) = await jobs.queue.read("dead", 1, 0.01)
    assert isinstance(await jobs.claim(message.job, "dead"), Lease)
    async with running(jobs, one):
        assert (await ended(jobs, job)).outcome == DONE
        await until_drained(jobs)


async def test_a_job_that_kills_its_workers_is_given_up(redis: Redis) -> None:
    jobs = store_of(redis)
    job = await submitted(jobs)
    for number in range(5):
        assert isinstance(await jobs.claim(job, f"dead-{number}"), Lease)
        await redis.delete(f"antiphon:{{{job}}}:lease")
    async with running(jobs, one):
        outcome = (await ended(jobs, job)).outcome
    assert outcome == Failed(JobError("worker_died", "its workers died 5 times in a row without getting on with it"))


async def test_a_worker_that_was_paused_and_lost_its_job_stores_no_result(redis: Redis) -> None:
    jobs = store_of(redis, lease_s=0.3)
    go_on, late_step = asyncio.Event(), asyncio.Event()

    async def pausing(spec: JobSpec, steps: StepStore, on_progress: object) -> Succeeded:
        await go_on.wait()
        with pytest.raises(LeaseLostError):
            await steps.put("late", b"x")
        late_step.set()
        return Succeeded(b"2", b"{}")

    job = await submitted(jobs)
    await jobs.queue.read("paused", 1, 0.01)
    await jobs.queue.read("paused", 1, 0.01)
    lease = await jobs.claim(job, "paused/1")
    assert isinstance(lease, Lease)
    run = JobRun(jobs, pausing, lease, JobLimits(beat_s=3600))  # neither beats nor holds: its process stands still
    paused = asyncio.create_task(run.until_ended())
    async with running(jobs, one, "heir"):
        assert (await ended(jobs, job)).outcome == DONE
    go_on.set()
    assert await paused == "succeeded"  # how another ended it
    assert late_step.is_set()
    assert (await jobs.get(job)).outcome == DONE
    assert not await redis.exists(f"antiphon:{{{job}}}:steps")


async def test_told_to_stop_it_hands_back_what_it_runs_and_another_goes_on_at_once(redis: Redis) -> None:
    jobs = store_of(redis, lease_s=600)
    ids = [await submitted(jobs) for _ in range(3)]
    async with running(jobs, for_ever, "first"):
        for job in ids:
            await until_state(jobs, job, "running")
    assert [(await jobs.get(job)).state for job in ids] == ["queued"] * 3
    async with running(jobs, one, "second"):
        assert [(await ended(jobs, job)).outcome for job in ids] == [DONE] * 3


async def test_what_is_cancelled_while_it_runs_is_cancelled_where_it_waits(redis: Redis) -> None:
    jobs = store_of(redis)
    left = asyncio.Event()

    async def watched(spec: JobSpec, steps: StepStore) -> bytes:
        try:
            return await for_ever(spec, steps)
        finally:
            left.set()

    job = await submitted(jobs)
    async with running(jobs, watched):
        await until_state(jobs, job, "running")
        await jobs.cancel(job)
        async with asyncio.timeout(2):
            await left.wait()
        await until_drained(jobs)
    assert (await jobs.queue.counts()).ended["cancelled"] == 1


async def test_a_deadline_ends_a_job_that_runs_and_one_that_waited_too_long(redis: Redis) -> None:
    jobs = store_of(redis)
    late = await submitted(jobs, created=time.time() - 10, deadline_s=5)
    slow = await submitted(jobs, deadline_s=0.3)
    async with running(jobs, for_ever):
        outcomes = [(await ended(jobs, job)).error for job in (late, slow)]
    assert outcomes == [
        JobError("deadline_exceeded", "it had not ended 5 s after its submission"),
        JobError("deadline_exceeded", "it had not ended 0.3 s after its submission"),
    ]


async def test_a_store_that_forgets_everything_is_served_again(redis: Redis) -> None:
    jobs = store_of(redis, lease_s=0.3)
    async with running(jobs, one):
        await ended(jobs, await submitted(jobs))
        await redis.flushall()
        assert (await ended(jobs, await submitted(jobs))).outcome == DONE
