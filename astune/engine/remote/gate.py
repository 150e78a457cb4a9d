"""A gate that calls go through together, and that one who changes what they compute with closes behind them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Gate:
    """`passing` calls run at the same time; `closed` waits until all of them are out and keeps others before it."""

    def __init__(self) -> None:
        self._inside = 0
        self._empty = asyncio.Event()
        self._empty.set()
        self._open = asyncio.Event()
        self._open.set()
        self.waiting = 0
        """Calls that stand before it."""

    @asynccontextmanager
    async def passing(self) -> AsyncIterator[None]:
        self.waiting += 1
        try:
            while not self._open.is_set():
                await self._open.wait()
        finally:
            self.waiting -= 1
        self._inside += 1
        self._empty.clear()
        try:
            yield
        finally:
            self._inside -= 1
            if not self._inside:
                self._empty.set()

    @asynccontextmanager
    async def closed(self) -> AsyncIterator[None]:
        """Exclusive: a second caller waits for the first."""
        while not self._open.is_set():
            await self._open.wait()
        self._open.clear()
        try:
            await self._empty.wait()
            yield
        finally:
            self._open.set()
