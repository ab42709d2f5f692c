"""Containers of a running compose project, and what can go wrong with them."""

from __future__ import annotations

import asyncio
import json
import subprocess
from dataclasses import dataclass
from typing import Any

import click

POLL_SECONDS = 0.5


async def docker(*arguments: str) -> str:
    """Run the docker command. Raises click.ClickException with what it said when it fails."""
    done = await asyncio.to_thread(subprocess.run, ["docker", *arguments], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise click.ClickException(f"docker {' '.join(arguments)}: {done.stderr.strip()}")
    return done.stdout.strip()


@dataclass(frozen=True)
class Container:
    """One service's container. ``networks`` maps the names of its networks to its aliases there."""

    service: str
    id: str
    networks: dict[str, list[str]]

    async def state(self) -> dict[str, Any]:
        """`State` of `docker inspect`."""
        state: dict[str, Any] = json.loads(await docker("inspect", "--format", "{{json .State}}", self.id))
        return state

    async def healthy(self, seconds: float) -> None:
        """Wait until its health check passes. Raises click.ClickException when that takes too long."""
        try:
            async with asyncio.timeout(seconds):
                while (await self.state()).get("Health", {}).get("Status") != "healthy":
                    await asyncio.sleep(POLL_SECONDS)
        except TimeoutError:
            raise click.ClickException(f"{self.service} is not healthy after {seconds:g} s") from None

    async def kill(self, down_seconds: float) -> None:
        """SIGKILL, and a start after a while."""
        await docker("kill", self.id)
        await asyncio.sleep(down_seconds)
        await docker("start", self.id)

    async def pause(self, seconds: float) -> None:
        """Freeze all its processes for a while; its connections stay open."""
        await docker("pause", self.id)
        try:
            await asyncio.sleep(seconds)
        finally:
            await docker("unpause", self.id)

    async def cut(self, seconds: float) -> None:
        """Take it off its networks for a while."""
        for network in self.networks:
            await docker("network", "disconnect", network, self.id)
        try:
            await asyncio.sleep(seconds)
        finally:
            for network, aliases in self.networks.items():
                named = [part for alias in aliases for part in ("--alias", alias)]
                await docker("network", "connect", *named, network, self.id)

    async def restart(self, grace_seconds: int) -> None:
        """SIGTERM, time to drain, and a start."""
        await docker("restart", "--time", str(grace_seconds), self.id)


async def containers(project: str) -> dict[str, Container]:
    """Containers of a project that run, by service. Raises click.ClickException when there are none."""
    ids = (await docker("ps", "--quiet", "--filter", f"label=com.docker.compose.project={project}")).split()
    if not ids:
        raise click.ClickException(f"no container of the project {project!r} runs: docker compose up --detach")
    found = {}
    for each in json.loads(await docker("inspect", *ids)):
        service = each["Config"]["Labels"]["com.docker.compose.service"]
        networks = {name: network["Aliases"] or [] for name, network in each["NetworkSettings"]["Networks"].items()}
        found[service] = Container(service, each["Id"], networks)
    return found
