import pytest
from hypothesis import given
from hypothesis import strategies as st

from teraio.planner.units import (
    LARGEST,
    format_bytes,
    format_ns,
    format_rate,
    format_written,
    parse_limit,
    parse_memory,
    parse_rate,
    parse_size,
    parse_time,
    parse_written,
)
from teraio.profiler.errors import UsageError


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [
        ("24GiB", 24 << 30),
        ("24GB", 24 * 10**9),
        ("512MiB", 512 << 20),
        ("1.5GiB", 3 << 29),
        ("4096", 4096),
        ("4096B", 4096),
        (" 2 kiB ", 2048),
        ("1.0000001KiB", 1024),
    ],
)
def test_sizes(text, nbytes):
    assert parse_size(text) == nbytes


@pytest.mark.parametrize(
    "text",
    ["", "GiB", "24XB", "24G", "0", "0.1B", "-1GiB", "nan", "inf", "1e9", "9" * 40, "8388608TiB",
     "24GiB!", "1.2.3GiB", "60%", "٣GiB", "24Gb", "24gb", "24Gib", "24b"],
)  # fmt: skip
def test_sizes_that_are_refused_name_the_accepted_forms(text):
    with pytest.raises(UsageError) as caught:
        parse_size(text)
    assert "24GiB" in caught.value.hint
    assert caught.value.exit_code == 2


def test_the_largest_size_is_accepted():
    assert parse_size(str(LARGEST)) == LARGEST
    with pytest.raises(UsageError, match="at most"):
        parse_size(str(LARGEST + 1))


def test_rates():
    assert parse_rate("6.7GB/s") == 6_700_000_000
    assert parse_rate("900MiB/s") == 900 << 20


@pytest.mark.parametrize(
    "text", ["6.7GB", "6.7GB/h", "/s", "0GB/s", "-1GB/s", "6.7/GB/s", "6.7Gb/s"]
)
def test_rates_that_are_refused(text):
    with pytest.raises(UsageError) as caught:
        parse_rate(text)
    assert "6.7GB/s" in caught.value.hint


def test_memory_may_be_a_share_of_the_peak_rounded_down():
    assert parse_memory("60%", 1001) == 600
    assert parse_memory("12.5 %", 80) == 10
    assert parse_memory("1GiB", 5) == 1 << 30


@pytest.mark.parametrize("text", ["0%", "-5%", "60GiB%", "%", "nan%", "60 percent", "8b"])
def test_memory_that_is_refused(text):
    with pytest.raises(UsageError) as caught:
        parse_memory(text, 1000)
    assert "60%" in caught.value.hint


@given(st.integers(1, LARGEST))
def test_a_number_of_bytes_reads_as_itself(nbytes):
    assert parse_size(str(nbytes)) == parse_size(f"{nbytes}B") == nbytes


@given(st.text())
def test_any_text_is_a_size_or_a_usage_error(text):
    try:
        assert 0 < parse_size(text) <= LARGEST
    except UsageError as error:
        assert error.hint


def test_formats():
    assert format_bytes(5 << 28) == "1.25 GiB"
    assert format_bytes(3 << 19) == "1.50 MiB"
    assert format_bytes(1536) == "1.50 KiB"
    assert format_bytes(512) == "512 B"
    assert format_rate(6_700_000_000) == "6.70 GB/s"
    assert format_rate(12) == "12 B/s"
    assert format_ns(1_234_000_000) == "1.234 s"
    assert format_ns(12_300_000) == "12.3 ms"
    assert format_ns(4_500) == "4.5 us"
    assert format_ns(7) == "7 ns"


def test_a_limit_may_be_nothing_at_all():
    assert [parse_limit(text) for text in ("0", "0GiB", "0.0MB", "2KiB")] == [0, 0, 0, 2048]
    for text in ("-1GiB", "", "0Gx", "0.1B"):
        with pytest.raises(UsageError):
            parse_limit(text)


@pytest.mark.parametrize("text", ["24", "0.6", " 1023"])
def test_memory_of_a_few_bytes_lacks_a_unit(text: str) -> None:
    with pytest.raises(UsageError, match="has no unit") as caught:
        parse_memory(text, 1000)
    assert "a size needs a unit, as `24GiB`" in caught.value.hint
    assert parse_memory("24B", 1000) == 24
    assert parse_memory("1024", 1000) == 1024


def test_endurance_needs_a_unit() -> None:
    assert parse_written("1200TB") == parse_written(str(12 * 10**14))
    with pytest.raises(UsageError, match="would be 1200 bytes"):
        parse_written("1200")


def test_bits_are_refused_with_a_hint() -> None:
    with pytest.raises(UsageError, match="unknown unit `Gb`") as caught:
        parse_rate("6.7Gb/s")
    assert "bits? write bytes as `GB`" in caught.value.hint


def test_what_is_written_is_given_as_on_data_sheets():
    assert format_written(1_200_000_000_000) == "1.20 TB"
    assert format_written(353_000_000) == "353.00 MB"
    assert format_written(1500) == "1.50 kB"
    assert format_written(0) == "0 B"


@pytest.mark.parametrize(
    ("text", "ns"), [("1.5s", 1_500_000_000), ("20 ms", 20_000_000), ("3us", 3000), ("7ns", 7)]
)
def test_times(text: str, ns: int) -> None:
    assert parse_time(text) == ns


@pytest.mark.parametrize("text", ["1", "s", "0s", "-1s", "0.1ns", "1S", "1 min", "99999999999s"])
def test_what_is_no_time(text: str) -> None:
    with pytest.raises(UsageError):
        parse_time(text)
