"""Tokens of a store: what the operations of ``api/token_operations`` do."""

from __future__ import annotations

from asterism.api import documents
from asterism.api import token_operations as declared
from asterism.api.credentials import CODE_LIFETIME, Credential, Credentials
from asterism.api.documents import document_of
from asterism.api.local.reasons import leave_reason
from asterism.api.system import LocalSystem


def _token(credential: Credential, now: float) -> documents.Token:
    return document_of(documents.Token, credential, scopes=sorted(credential.scopes), state=credential.state(now))


async def list_tokens(system: LocalSystem, request: declared.ListTokens) -> documents.Page[documents.Token]:
    store = system.fleet.store
    now = store.clock()
    items = [_token(credential, now) for credential in await Credentials(store).all()]
    return documents.Page(items=items, now=now)


async def create_token(system: LocalSystem, request: declared.CreateToken) -> documents.CreatedToken:
    fleet = system.fleet
    new = await Credentials(fleet.store).create(request.name, request.scopes, by=fleet.by, valid_for=request.valid)
    await leave_reason(fleet, f"created token {new.credential.id} for {new.credential.name}", request.reason)
    return documents.CreatedToken(**vars(_token(new.credential, fleet.store.clock())), token=new.token)


async def revoke_token(system: LocalSystem, request: declared.RevokeToken) -> documents.Token:
    fleet = system.fleet
    revoked = await Credentials(fleet.store).revoke(request.token)
    await leave_reason(fleet, f"revoked token {revoked.id} of {revoked.name}", request.reason)
    return _token(revoked, fleet.store.clock())


async def create_login(system: LocalSystem, request: declared.CreateLogin) -> documents.LoginCode:
    fleet = system.fleet
    name = request.name or fleet.by
    code = await Credentials(fleet.store).create_login(name, request.scopes, by=fleet.by)
    await leave_reason(fleet, f"created a login for {name}", request.reason)
    return documents.LoginCode(code=code, expires_at=fleet.store.clock() + CODE_LIFETIME)
