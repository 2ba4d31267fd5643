"""GitHub's own description of its API, from the registry of npm, for tests only.

``make github-schema`` fetches it into a folder that git ignores: the
OpenAPI description, the GraphQL schema, and the reference implementation of GraphQL that checks queries against it.
"""

from __future__ import annotations

from pathlib import Path

from tests.npm_packages import Package, fetch

FOLDER = Path(__file__).parents[3] / ".github-schema"
MISSING = "GitHub's description is not here: make github-schema fetches it (it needs npm)"

PACKAGES = (
    Package(
        "@octokit/openapi",
        "23.0.2",
        "sha512-pV8M7L9GY23AybNvTmo2nyjmpmnt6+2sRE/tqr0ZLQcPS4lnw7u5eZGNmwRNkBC3D7gZXbFx5AHzLUVRBXGDhg==",
        "generated/api.github.com.json",
        "openapi.json",
    ),
    Package(
        "@octokit/graphql-schema",
        "15.26.1",
        "sha512-RFDC2MpRBd4AxSRvUeBIVeBU7ojN/SxDfALUd7iVYOSeEK3gZaqR2MGOysj4Zh2xj2RY5fQAUT+Oqq7hWTraMA==",
        "schema.graphql",
        "schema.graphql",
    ),
    Package(
        "graphql",
        "16.15.0",
        "sha512-32kz9FecohDiC/tgcViwnRXM7HFBVTPiW7pHO+DikKOI5KjhU/jNULOReXsrFqt2WAYbE9xFXsTffJw6iTO8qw==",
        "",
        "graphql",
    ),
)


if __name__ == "__main__":
    fetch(PACKAGES, FOLDER)
