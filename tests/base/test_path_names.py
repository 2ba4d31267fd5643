"""Names as parts of paths: what any client does to a path leaves them as they are."""

from __future__ import annotations

from urllib.parse import unquote

import httpx
from hypothesis import example, given
from hypothesis import strategies as st

from asterism.base.text import path_part, plain_name

NAMES = st.text(st.characters(exclude_categories=("Cs",)), min_size=1) | st.text("~./%2E", min_size=1)


@given(NAMES)
@example(".")
@example("..")
@example("~..")
def test_a_name_is_one_part_of_a_path_and_comes_back(name: str) -> None:
    sent = httpx.URL(f"http://host/tasks/{path_part(name)}/logs").raw_path.decode()
    assert sent.startswith("/tasks/")
    [part] = sent.removeprefix("/tasks/").removesuffix("/logs").split("/")
    assert unquote(part) not in (".", "..")  # browsers remove these, encoded or not
    assert plain_name(unquote(part)) == name
