"""The list of modules is made from their docstrings, and up to date."""

from __future__ import annotations

from pathlib import Path

from tests.docs import module_list


def test_the_list_has_every_module_under_its_package(tmp_path: Path) -> None:
    source = tmp_path / "asterism"
    (source / "core" / "plan").mkdir(parents=True)
    for name, docstring in {
        "__init__": "Plans that change.\n\nMore.",
        "core/__init__": "The pure core.",
        "core/errors": "Errors, such as ``PlanError``.",
        "core/plan/__init__": "Plans as :class:`Graph`.",
        "core/plan/task": "A task.",
    }.items():
        (source / f"{name}.py").write_text(f'"""{docstring}"""\n', encoding="utf-8")
    assert module_list.page(source).removeprefix(module_list.HEAD) == (
        "\nThere are 2 modules in 3 packages.\n"
        "\n## `asterism`\n\nPlans that change.\n"
        "\n## `asterism.core`\n\nThe pure core.\n\n- `errors`: Errors, such as `PlanError`.\n"
        "\n## `asterism.core.plan`\n\nPlans as `Graph`.\n\n- `task`: A task.\n"
    )


def test_the_page_is_up_to_date() -> None:
    """If not, ``make modules`` writes it."""
    assert module_list.PAGE.read_text(encoding="utf-8") == module_list.page()
