"""How another process opens the register on the local GitHub."""

from __future__ import annotations

from github_server import TOKEN

from asterism.series.github.opening import open_github
from asterism.series.github.register import GitHubRegister


async def open_at(address: str) -> GitHubRegister:
    return open_github("acme/rocket", environ={"GITHUB_TOKEN": TOKEN, "GITHUB_API_URL": address})
