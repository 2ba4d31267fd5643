"""Secrets of webhooks, from the environment of a server or from files."""

from __future__ import annotations

import os

import click

MIN_SECRET = 16
"""Characters of a webhook's secret."""


def taken_from_environment(variable: str) -> str:
    """The value of a variable, which is removed: commands that this process starts would inherit it."""
    return os.environ.pop(variable, "")


def webhook_secret(text: str, advice: str) -> bytes:
    """The secret in a text. Raises UsageError with ``advice`` if it is too short."""
    secret = text.strip().encode()
    if len(secret) < MIN_SECRET:
        raise click.UsageError(advice)
    return secret
