"""Hosts: what an entry of a policy stands for, and that no way of writing an address gets round it."""

from __future__ import annotations

import ipaddress
import socket

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asterism.fleet.policy.device_policy import (
    DevicePolicy,
    HostRule,
    NamePatterns,
    PolicyForbids,
    Rules,
    compile_pattern,
    parse_host,
)


def allows(entry: str, url: str) -> bool:
    try:
        DevicePolicy(Rules(hosts=(entry,))).url(url)
    except PolicyForbids:
        return False
    return True


@pytest.mark.parametrize(
    ("entry", "url"),
    [
        ("example.org", "http://example.org/x"),
        ("example.org", "https://EXAMPLE.org:443/x"),
        ("example.org", "https://example.org./x"),
        ("EXAMPLE.org.", "https://example.org/x"),
        ("example.org:8443", "https://example.org:8443/"),
        ("example.org:*", "http://example.org:1/"),
        ("https://example.org", "https://example.org/"),
        ("*.example.org", "http://a.example.org/"),
        ("*.example.org", "http://a.b.example.org/"),
        ("api?.example.org", "http://api1.example.org/"),
        ("*", "http://anything.at.all/"),
        ("*", "http://127.0.0.1/"),
        ("*:*", "http://[::1]:99/"),
        ("127.0.0.1", "http://127.0.0.1/"),
        ("10.0.0.0/8:*", "http://10.9.8.7:1234/"),
        ("[::1]:8080", "http://[::1]:8080/"),
        ("[::1]:8080", "http://[0:0:0:0:0:0:0:1]:8080/"),
        ("[::ffff:10.0.0.0/104]", "http://10.1.2.3/"),
        ("10.0.0.0/8", "http://[::ffff:10.1.2.3]/"),
        ("xn--bcher-kva.example", "http://bücher.example/"),
    ],
)
def test_a_host_rule_allows_as_documented(entry: str, url: str) -> None:
    assert allows(entry, url)


@pytest.mark.parametrize(
    ("entry", "url"),
    [
        ("example.org", "http://example.org:8080/"),
        ("example.org:8443", "https://example.org/"),
        ("example.org", "http://example.org:443/"),
        ("https://example.org", "http://example.org/"),
        ("example.org", "http://a.example.org/"),
        ("*.example.org", "http://example.org/"),
        ("*.example.org", "http://evilexample.org/"),
        ("example.org", "http://example.org.evil.org/"),
        ("example.org", "http://example.org@evil.org/"),
        ("example.org", "http://evil.org#example.org"),
        ("example.org", "http://evil.org?@example.org/"),
        ("example.org", "http://evil.org\\@example.org/"),
        ("example.org", "http://user@example.org/"),
        ("example.org", "http://user:password@example.org/"),
        ("example.org", "http://:@example.org/"),
        ("example.org", "ftp://example.org/"),
        ("example.org", "file:///etc/passwd"),
        ("example.org", "//example.org/"),
        ("example.org", "example.org"),
        ("example.org", "http:///"),
        ("example.org", "http://example%2eorg/"),
        ("127.0.0.1", "http://127.0.0.1%40evil.org/"),
        ("127.0.0.1", "http://127.0.0.1%25evil.org/"),
        ("*.*", "http://10.0.0.1/"),
        ("?.example.org", "http://a.b.example.org/"),
        ("10.0.0.0/8", "http://11.0.0.1/"),
        ("10.0.0.0/8", "http://10.example.org/"),
        ("127.0.0.1", "http://127.0.0.2/"),
        ("127.0.0.1", "http://localhost/"),
        ("localhost", "http://127.0.0.1/"),
        ("*.org", "http://[::1]/"),
    ],
)
def test_an_entry_allows_nothing_else(entry: str, url: str) -> None:
    assert not allows(entry, url)


@pytest.mark.parametrize(
    "text",
    ["", "a b", "http://", "ftp://x", "x:99999", "x:http", "[::1", "10.0.0.1/8", "300.1.1.1", "user@x", "x/y", "*.1"],
)
def test_an_entry_that_means_nothing_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"^must "):
        HostRule.parse(text)


NUMBERS = st.integers(0, 2**32 - 1) | st.sampled_from([0x7F000001, 0x0A000001, 0])


def written(number: int) -> list[str]:
    """The ways in which systems understand an address."""
    a, b, c, d = number.to_bytes(4, "big")
    forms = [f"{a}.{b}.{c}.{d}", f"{a}.{b}.{(c << 8) + d}", f"{a}.{number & 0xFFFFFF}", f"{number}", f"{number:#x}"]
    forms += [f"0x{a:x}.0x{b:x}.{c}.{d}", f"0{a:o}.{b}.{c}.0{d:o}", f"0{number:o}", f"{a}.{b}.{c}.{d}."]
    return [*forms, f"[::ffff:{a}.{b}.{c}.{d}]", f"[::ffff:{number >> 16:x}:{number & 0xFFFF:x}]"]


@settings(max_examples=300)
@given(NUMBERS, st.data())
def test_an_address_is_judged_by_its_value_in_any_spelling(number: int, data: st.DataObject) -> None:
    text = data.draw(st.sampled_from(written(number)))
    try:
        url = httpx.URL(f"http://{text}/")
    except httpx.InvalidURL:
        return
    host = parse_host(url.raw_host.decode("ascii"))
    try:  # the address that the system would connect to
        reached = socket.getaddrinfo(url.host.removesuffix("."), 80, flags=socket.AI_NUMERICHOST)[0][4][0]
    except OSError:
        return
    address = ipaddress.ip_address(reached)
    assert host == (getattr(address, "ipv4_mapped", None) or address)
    inside = ipaddress.IPv4Address(number) in ipaddress.ip_network("10.0.0.0/8")
    assert allows("10.0.0.0/8", f"http://{text}/") is inside
    assert not allows("*.*:*", f"http://{text}/")


PIECES = st.sampled_from(
    [
        *("http", "https", "ftp", "://", ":", "//", "/", "\\", "@", "#", "?", "good.org", "evil.org", ".", "good.org."),
        *("%40", "%2e", "user", ":80", ":443", ":8080", "[", "]", "::1", "127.0.0.1", "GOOD.ORG", " ", "\t"),
        *("\u3002", "\uff0e"),  # full stops that become ordinary ones
    ]
)


@settings(max_examples=500)
@given(st.lists(PIECES, max_size=9).map("".join))
def test_no_way_of_writing_a_url_gets_round_the_hosts(tail: str) -> None:
    for text in (tail, f"http://{tail}", f"https://good.org{tail}"):
        try:
            if not allows("good.org", text):
                continue
            request = httpx.Request("GET", text)
        except (httpx.InvalidURL, ValueError):
            continue
        assert request.url.host.rstrip(".") == "good.org"
        assert request.url.scheme in ("http", "https")
        assert request.url.port is None
        assert not request.url.userinfo
        assert request.headers["host"].rstrip(".") == "good.org"


# -- patterns ----------------------------------------------------------------------------------------------------------


def simply(pattern: str, name: str, separator: str) -> bool:
    """The meaning of a pattern, without any cleverness."""
    if not pattern:
        return not name
    if pattern[0] == "*":
        longest = next((index for index, letter in enumerate(name) if letter == separator), len(name))
        return any(simply(pattern[1:], name[index:], separator) for index in range(longest + 1))
    if not name or (pattern[0] == "?" and name[0] == separator) or (pattern[0] != "?" and pattern[0] != name[0]):
        return False
    return simply(pattern[1:], name[1:], separator)


@settings(max_examples=500)
@given(st.text("ab/.*?\n[", max_size=8), st.text("ab/.\n[", max_size=8), st.sampled_from(["", "/", "."]))
def test_a_pattern_matches_as_documented(pattern: str, name: str, separator: str) -> None:
    assert (compile_pattern(pattern, separator).fullmatch(name) is not None) is simply(pattern, name, separator)


def test_a_list_of_patterns_matches_if_one_does() -> None:
    names = NamePatterns(("a*b*", "*a", "c"))
    assert [name in names for name in ("axb", "xa", "c", "ab", "b", "cc", 5, "")] == [True] * 4 + [False] * 4
    assert "" not in NamePatterns(())
    assert "a" not in NamePatterns(())


def test_no_name_takes_long_whatever_the_pattern() -> None:
    """With a way back, this test would not end within a lifetime."""
    names = NamePatterns(("*a*a*a*a*a*a*a*a*a*a*b", "*-*-*-*-*-*-*-x"))
    assert "a" * 5_000 + "-" * 5_000 not in names
