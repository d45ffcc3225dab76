import json

import pytest

from teraio.planner.hardware import ASSUMED, read_hardware, with_drives, with_rates, with_tbw
from teraio.planner.plan import Hardware, HostLink, Ssd
from teraio.profiler.errors import BadInputError, InputMissingError, UsageError

MEASURED = {
    "ssd": {"read_bytes_per_s": 5, "write_bytes_per_s": 4, "latency_ns": 3},
    "host_link": {"to_host_bytes_per_s": 2, "to_gpu_bytes_per_s": 1},
    "source": {"ssd": "measured", "host_link": "measured"},
}


def test_the_default_says_that_it_is_assumed():
    assert all("assumed" in how for how in ASSUMED.source.values())


def test_a_measured_file(tmp_path):
    path = tmp_path / "hardware.json"
    path.write_text(json.dumps(MEASURED))
    assert read_hardware(path) == Hardware(Ssd(5, 4, 3), HostLink(2, 1), MEASURED["source"])


def test_bad_files(tmp_path):
    path = tmp_path / "hardware.json"
    with pytest.raises(InputMissingError):
        read_hardware(path)
    slow = MEASURED["ssd"] | {"latency_ns": -1}
    dead = {"to_host_bytes_per_s": 0, "to_gpu_bytes_per_s": 1}
    wrong = [{}, MEASURED | {"ssd": slow}, MEASURED | {"host_link": dead}]
    for text in ["", "[]", *map(json.dumps, wrong)]:
        path.write_text(text)
        with pytest.raises(BadInputError, match=r"hardware\.json"):
            read_hardware(path)


def test_given_rates_replace_the_others_and_say_so():
    given = with_rates(ASSUMED, ssd_read=7, host_link=9)
    assert given.ssd == Ssd(7, ASSUMED.ssd.write_bytes_per_s, ASSUMED.ssd.latency_ns)
    assert given.host_link == HostLink(9, 9)
    assert given.source["ssd.read_bytes_per_s"] == given.source["host_link"] == "given"
    assert "assumed" in given.source["ssd"]
    assert with_rates(ASSUMED, ssd_write=8).ssd.write_bytes_per_s == 8
    assert with_rates(ASSUMED) == ASSUMED


@pytest.mark.parametrize("rate", [0, -1])
@pytest.mark.parametrize("which", ["ssd_read", "ssd_write", "host_link"])
def test_a_rate_must_be_positive(which, rate):
    with pytest.raises(UsageError):
        with_rates(ASSUMED, **{which: rate})


def test_several_drives_add_up_and_say_so():
    given = with_rates(ASSUMED, ssd_read=7, host_link=9)
    four = with_drives(given, 4)
    write = ASSUMED.ssd.write_bytes_per_s
    assert four.ssd == Ssd(28, 4 * write, ASSUMED.ssd.latency_ns, drives=4)
    assert four.host_link == given.host_link
    assert four.source == {
        "ssd": "4 x assumed: one PCIe 4.0 drive, 20 us",
        "ssd.read_bytes_per_s": "4 x given",
        "host_link": "given",
    }
    assert with_drives(given, 1) == given
    assert with_drives(four, 2).ssd.drives == 8


@pytest.mark.parametrize("drives", [0, -1, 2**62])
def test_a_number_of_drives_that_cannot_be_meant(drives):
    with pytest.raises(UsageError) as caught:
        with_drives(ASSUMED, drives)
    assert "--ssds" in caught.value.hint


def test_the_rating_of_each_drive():
    rated = with_tbw(ASSUMED, 600 * 10**12)
    assert rated.ssd.tbw_bytes == 600 * 10**12
    assert rated.source["ssd.tbw_bytes"] == "given"
    assert with_drives(rated, 2).ssd.tbw_bytes == 600 * 10**12
    with pytest.raises(UsageError):
        with_tbw(ASSUMED, 0)


def test_a_file_may_say_drives_and_rating(tmp_path):
    path = tmp_path / "hardware.json"
    ssd = MEASURED["ssd"] | {"drives": 2, "tbw_bytes": 9}
    path.write_text(json.dumps(MEASURED | {"ssd": ssd}))
    assert read_hardware(path).ssd == Ssd(5, 4, 3, drives=2, tbw_bytes=9)
    path.write_text(json.dumps(MEASURED | {"ssd": ssd | {"drives": None, "tbw_bytes": None}}))
    assert read_hardware(path).ssd == Ssd(5, 4, 3)
