"""Adaptive concurrency on a real vLLM that runs few sequences at once."""

from __future__ import annotations

import asyncio
import contextlib
import time

import calls
import pytest
from conftest import gateway_of
from vllm_server import Vllm

pytestmark = pytest.mark.timeout(3600)

SEQUENCES, CALLERS, CALLS, TOKENS = 8, 64, 4, 256


async def load(gateway) -> tuple[float, list[int]]:
    """Makes the calls of all callers; returns the seconds and the limits meanwhile."""
    limits = []

    async def caller() -> None:
        async with calls.async_client(gateway, gateway.key()) as client:
            for _ in range(CALLS):
                # A lost request raises, and fails the test.
                answer = await client.completions.create(
                    model="policy",
                    prompt="hello",
                    max_tokens=TOKENS,
                    extra_body={"ignore_eos": True},
                )
                assert answer.usage.completion_tokens == TOKENS

    async def watch() -> None:
        while True:
            limits.append((await asyncio.to_thread(gateway.server))["limit"])
            await asyncio.sleep(0.2)

    watching = asyncio.create_task(watch())
    began = time.monotonic()
    await asyncio.gather(*(caller() for _ in range(CALLERS)))
    seconds = time.monotonic() - began
    watching.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await watching
    return seconds, limits


@pytest.mark.capability("adaptive concurrency: the queue waits in the gateway, no request lost")
def test_the_limit_follows_the_queue(random_model, measured):
    server = Vllm(random_model, arguments=("--max-num-seqs", str(SEQUENCES)))
    seconds, lowest = {"true": 0.0, "false": 0.0}, {}
    try:
        # A slower or faster machine meanwhile affects both alike.
        for adaptive in ("false", "true", "true", "false"):
            gateway = gateway_of("vllm", server.url, "--adaptive", adaptive)
            with contextlib.closing(gateway):
                took, limits = asyncio.run(load(gateway))
            seconds[adaptive] += took
            lowest[adaptive] = min(limits)
    finally:
        server.kill()
    rates = {name: 2 * CALLERS * CALLS * TOKENS / took for name, took in seconds.items()}
    measured(
        f"{CALLERS} callers, {SEQUENCES} sequences at once: {rates['true']:.0f} tokens/s with a "
        f"limit of {lowest['true']} at the least, {rates['false']:.0f} tokens/s without"
    )
    assert lowest["false"] > CALLERS
    assert lowest["true"] <= 2 * SEQUENCES
