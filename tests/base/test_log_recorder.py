"""A recorder: bytes and text become lines with time and stream, bounded, with secrets masked."""

from __future__ import annotations

import threading
from itertools import count

from hypothesis import given
from hypothesis import strategies as st

from asterism.base.log_recorder import LONGEST_LINE, LogRecorder
from asterism.base.secret_mask import Mask
from asterism.core.attempt_log import GAP, LogLine, lines_of

SECRET = "correct-horse-battery"


def recorder(limit: int = 10_000, *secrets: str) -> LogRecorder:
    mask = Mask({f"NAME_{number}": secret for number, secret in enumerate(secrets)})
    ticks = count()
    return LogRecorder(lambda: float(next(ticks)), limit, mask=lambda: mask)


def texts(recorded: LogRecorder) -> list[str]:
    return [line.text for line in lines_of(recorded.chunks())]


def test_lines_of_both_streams_are_in_order_with_time_and_stream() -> None:
    recorded = recorder()
    recorded.hear(1, b"one\ntwo\npart")
    recorded.hear(2, b"trouble\n")
    recorded.hear(1, b"ial\n")
    recorded.write("log", "INFO done\n")
    assert lines_of(recorded.chunks()) == [
        LogLine(0.0, "stdout", "one"),
        LogLine(0.0, "stdout", "two"),
        LogLine(1.0, "stderr", "trouble"),
        LogLine(2.0, "stdout", "partial"),
        LogLine(3.0, "log", "INFO done"),
    ]


def test_a_character_that_is_cut_in_two_and_a_line_without_an_end() -> None:
    recorded = recorder()
    for octet in "grün ✓".encode():
        recorded.hear(1, bytes([octet]))
    assert not recorded
    recorded.hear(2, b"\xff broken")
    recorded.close()
    assert texts(recorded) == ["grün ✓", "\ufffd broken"]
    recorded.write("stdout", "too late\n")
    assert len(texts(recorded)) == 2


@given(st.lists(st.integers(1, 40), max_size=30), st.integers(0, 30))
def test_a_secret_is_masked_wherever_the_output_is_cut(sizes: list[int], before: int) -> None:
    text = f"{'x' * before}{SECRET}\nshown {SECRET} {SECRET}".encode()
    recorded = recorder(400, SECRET)  # lines of more than 100 bytes are cut
    for size in sizes:
        recorded.hear(1, text[:size])
        text = text[size:]
    recorded.hear(1, text)
    recorded.close()
    assert texts(recorded) == [f"{'x' * before}[secret]", "shown [secret] [secret]"]


@given(st.integers(0, 200), st.integers(1, 64))
def test_a_secret_in_a_line_that_is_too_long_is_masked(before: int, size: int) -> None:
    line = f"{'.' * before}{SECRET}{'.' * 150}"
    recorded = recorder(400, SECRET)
    for first in range(0, len(line), size):
        recorded.write("stdout", line[first : first + size])
    recorded.close()
    joined = "".join(text for text in texts(recorded) if not text.startswith("…"))
    assert SECRET not in joined
    assert not any(SECRET[first : first + 6] in joined for first in range(len(SECRET) - 5))


def test_without_masking_before_the_cut_a_part_of_a_secret_would_be_kept() -> None:
    """Ablation."""
    recorded = recorder(400, SECRET)
    recorded._shortened = lambda stream, rest: recorded._log.add(0.0, stream, rest) or ""  # type: ignore[method-assign]
    recorded.write("stdout", "." * 90 + SECRET[:12])
    recorded.write("stdout", SECRET[12:] + "\n")
    assert SECRET[:12] in "".join(texts(recorded))


def test_a_secret_of_several_lines_leaves_the_number_of_lines_alone() -> None:
    key = "-----BEGIN KEY-----\nMIIEvQIBADANBg\nab\n-----END KEY-----"
    recorded = recorder(10_000, key)
    recorded.write("stdout", f"before\n{key}\nafter\n")
    lines = texts(recorded)
    assert lines[:3] == ["before", "[secret]", "after"]
    assert len(lines) == 6
    assert not any(word in "".join(lines) for word in ("MII", "ab"))


def test_a_very_long_line_is_cut_and_a_progress_bar_is_not_kept_whole() -> None:
    recorded = recorder(1_000_000)
    recorded.write("stdout", "a" * (3 * LONGEST_LINE) + "\n")
    assert [len(text) for text in texts(recorded)] == [LONGEST_LINE] * 3
    for percent in range(5000):
        recorded.write("stderr", f"\rloading {percent} of 5000")
    recorded.close()
    assert texts(recorded)[3:] == ["loading 4999 of 5000"]


def test_a_noisy_command_keeps_its_beginning_and_its_end() -> None:
    recorded = recorder(2000)
    for number in range(1000):
        recorded.hear(1, f"line {number}\n".encode())
    lines = lines_of(recorded.chunks())
    assert (lines[0].text, lines[-1].text) == ("line 0", "line 999")
    assert [line.stream for line in lines].count(GAP) == 1
    assert recorded.size <= 2100


def test_threads_may_print_at_once() -> None:
    recorded = recorder(1_000_000)

    def work(name: str) -> None:
        for number in range(300):
            recorded.write("stdout", f"{name} {number}\n")

    threads = [threading.Thread(target=work, args=(name,)) for name in "abc"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    lines = texts(recorded)
    assert len(lines) == 900
    for name in "abc":
        assert [line for line in lines if line.startswith(name)] == [f"{name} {number}" for number in range(300)]
