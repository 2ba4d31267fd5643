"""How another process opens the register on the local GitHub."""

from __future__ import annotations

from asterism.series.github.github_register import GitHubRegister, open_github
from tests.series.github.github_server import TOKEN


async def open_at(address: str) -> GitHubRegister:
    return open_github("acme/rocket", environ={"GITHUB_TOKEN": TOKEN, "GITHUB_API_URL": address})
