import json

import pytest

from teraio.planner.hardware import ASSUMED, read_hardware, with_rates
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
