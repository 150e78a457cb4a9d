"""Episodes that wait for a worker, and the leases of those that run: an episode is played by one worker at a time.

    offered    waits in the queue of its lane, training or evaluation
    leased     a worker has it, and has to say so again before the lease ends
    over       ended or aborted by its worker, withdrawn since nobody waits for it, or lost: the lease ended

An expired lease is refused. Episodes are offered on one event loop and claimed on another.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import threading
import time
from collections import Counter, OrderedDict, deque
from concurrent.futures import Future, InvalidStateError
from dataclasses import dataclass, field
from typing import Any

from astune.schema import LeaseLost, Split, WorkflowError

LEASE_S = 20.0
"""Seconds after which a worker without a heartbeat is given up; three heartbeats."""
_LONELY_S = 30.0
_REMEMBERED = 10_000
LANES: tuple[Split, ...] = ("train", "validation")
_log = logging.getLogger(__name__)


@dataclass(eq=False)
class Offer:
    """An episode to be played: `task` is what the agent may know, `key` opens the episode's model."""

    episode_id: str
    task: dict[str, Any]
    key: str
    model: str
    lane: Split
    result: Future[dict[str, Any]] = field(default_factory=Future)
    """Result with which the worker ends the episode."""
    lease: str = ""
    lease_ends: float = 0.0
    number: int = 0


class StaleLeaseError(Exception):
    """The lease is over, or there never was one."""


class LeaseBoard:
    """The episodes of one process that workers play."""

    def __init__(self, lease_s: float | None = None) -> None:
        self.lease_s = LEASE_S if lease_s is None else lease_s
        self._waiting: dict[Split, deque[Offer]] = {lane: deque() for lane in LANES}
        self._leased: dict[str, Offer] = {}
        self._ended: OrderedDict[str, str] = OrderedDict()
        """The lease of each of the last episodes that their workers ended."""
        self._n_offered = 0
        self._has_workers = False
        self._closed = False
        self._lock = threading.Lock()
        self._changed: set[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = set()

    async def play(self, offer: Offer, where: str) -> dict[str, Any]:
        """Offer an episode, and wait for a worker's result. A cancellation withdraws it.

        Args:
            where: how workers come here, for the warning that none does.

        Raises:
            LeaseLost: its worker sent no more heartbeats, or gave it back.
            WorkflowError: its worker reports that it failed.
        """
        loop = asyncio.get_running_loop()
        with self._lock:
            offer.number, self._n_offered = self._n_offered, self._n_offered + 1
            self._waiting[offer.lane].append(offer)
        self._wake()
        lonely = None if self._has_workers or offer.number else loop.call_later(_LONELY_S, self._warn, where)
        try:
            return await asyncio.wrap_future(offer.result)
        finally:
            if lonely is not None:
                lonely.cancel()
            self._withdraw(offer)

    async def claim(self, wait_s: float) -> Offer | None:
        """Lease the next episode to a worker; None where there is none within `wait_s` seconds."""
        self._has_workers = True
        loop, event = asyncio.get_running_loop(), asyncio.Event()
        give_up = loop.time() + wait_s
        self._changed.add((loop, event))
        try:
            while (offer := self._next()) is None and (left := give_up - loop.time()) > 0 and not self._closed:
                event.clear()
                try:
                    await asyncio.wait_for(event.wait(), left)
                except TimeoutError:
                    break
        finally:
            self._changed.discard((loop, event))
        if offer is not None:
            loop.call_later(self.lease_s, self._look_after, loop, offer)
        return offer

    def heartbeat(self, episode_id: str, lease: str) -> None:
        """Renew a lease. Raises StaleLeaseError where it is over."""
        with self._lock:
            self._leased_offer(episode_id, lease).lease_ends = time.monotonic() + self.lease_s

    def end(self, episode_id: str, lease: str, result: dict[str, Any]) -> None:
        """Deliver an episode's result; repeated, it counts once. Raises StaleLeaseError where the lease is over."""
        self._conclude(episode_id, lease, result)

    def abort(self, episode_id: str, lease: str, failure: WorkflowError) -> None:
        """Report why an episode cannot be finished. Raises StaleLeaseError where the lease is over."""
        self._conclude(episode_id, lease, failure)

    def close(self) -> None:
        """Give up all episodes, and send waiting workers away."""
        with self._lock:
            self._closed = True
            offers = [*self._leased.values(), *(offer for waiting in self._waiting.values() for offer in waiting)]
            self._leased.clear()
            for waiting in self._waiting.values():
                waiting.clear()
        self._wake()
        for offer in offers:
            _settle(offer, WorkflowError("the run ended before the episode"))

    def lanes(self) -> dict[str, dict[str, int]]:
        """Count the waiting and running episodes of each lane."""
        with self._lock:
            running = Counter(offer.lane for offer in self._leased.values())
            return {lane: {"waiting": len(self._waiting[lane]), "running": running[lane]} for lane in LANES}

    def _wake(self) -> None:
        """Let waiting workers look again."""
        for loop, event in list(self._changed):
            loop.call_soon_threadsafe(event.set)

    def _next(self) -> Offer | None:
        """Lease the oldest episode of the lane with fewer running, so that neither lane waits for the other."""
        with self._lock:
            running = Counter(offer.lane for offer in self._leased.values())
            heads = [waiting[0] for waiting in self._waiting.values() if waiting]
            if not heads:
                return None
            offer = min(heads, key=lambda each: (running[each.lane], each.number))
            self._waiting[offer.lane].popleft()
            offer.lease = secrets.token_urlsafe(16)
            offer.lease_ends = time.monotonic() + self.lease_s
            self._leased[offer.episode_id] = offer
            return offer

    def _look_after(self, loop: asyncio.AbstractEventLoop, offer: Offer) -> None:
        """Give up an episode when its lease has ended; check again where it was renewed."""
        with self._lock:
            if self._leased.get(offer.episode_id) is not offer:
                return
            left = offer.lease_ends - time.monotonic()
            if left <= 0:
                del self._leased[offer.episode_id]
        if left > 0:
            loop.call_later(left, self._look_after, loop, offer)
            return
        _settle(
            offer,
            LeaseLost(f"the worker of episode {offer.episode_id} has not reported for {self.lease_s:g} s", hint=_HINT),
        )

    def _leased_offer(self, episode_id: str, lease: str) -> Offer:
        offer = self._leased.get(episode_id)
        if offer is None or not _is(lease, offer.lease):
            raise StaleLeaseError(episode_id)
        return offer

    def _conclude(self, episode_id: str, lease: str, outcome: dict[str, Any] | WorkflowError) -> None:
        with self._lock:
            if _is(lease, self._ended.get(episode_id, "")):
                return
            offer = self._leased_offer(episode_id, lease)
            del self._leased[episode_id]
            self._ended[episode_id] = lease
            while len(self._ended) > _REMEMBERED:
                self._ended.popitem(last=False)
        _settle(offer, outcome)

    def _withdraw(self, offer: Offer) -> None:
        with self._lock:
            if self._leased.get(offer.episode_id) is offer:
                del self._leased[offer.episode_id]
            elif offer in self._waiting[offer.lane]:
                self._waiting[offer.lane].remove(offer)

    def _warn(self, where: str) -> None:
        if not self._has_workers:
            _log.warning("no worker has come for %g s; start one: %s", _LONELY_S, where)


_HINT = "its machine or its connection is gone; the episode is run again by another worker"


def _is(given: str, lease: str) -> bool:
    """Compare in constant time; without a lease, nothing is one."""
    return lease != "" and secrets.compare_digest(given.encode("utf-8", "replace"), lease.encode())


def _settle(offer: Offer, outcome: dict[str, Any] | WorkflowError) -> None:
    try:
        if isinstance(outcome, WorkflowError):
            offer.result.set_exception(outcome)
        else:
            offer.result.set_result(outcome)
    except InvalidStateError:  # nobody waits any more
        return
