import hashlib
import io
import json
import re
from dataclasses import replace

import pytest
from example_counts import examples
from hypothesis import given
from hypothesis import strategies as st
from traces import training_trace

from teraio.planner.plan import (
    NO_CONTROLS,
    Budget,
    Controls,
    Hardware,
    HostLink,
    Offload,
    Plan,
    PlannedTensor,
    Policy,
    Prediction,
    Prefetch,
    Program,
    Ssd,
    TraceRef,
    Traffic,
)
from teraio.planner.plan_file import read_plan, sha256_of, write_plan
from teraio.profiler.errors import BadInputError, InputMissingError
from teraio.profiler.trace import write_trace

WHOLE = st.integers(0, 2**63 - 1)
POSITIVE = st.integers(1, 2**63 - 1)
SHARE = st.floats(0, 1, exclude_max=True)
TIER = st.sampled_from(["ssd", "host"])


@st.composite
def controls(draw):
    patterns = st.lists(st.text().map(re.escape) | st.just(r"layers\.\d+"), max_size=2).map(tuple)
    return Controls(
        tiers=draw(st.sampled_from([("ssd",), ("host",), ("ssd", "host")])),
        keep=draw(patterns),
        never_ssd=draw(patterns),
        min_tensor_bytes=draw(WHOLE),
        ssd_write_bytes=draw(st.none() | WHOLE),
    )


@st.composite
def plans(draw):
    ops = draw(st.integers(1, 9))
    op = st.integers(0, ops - 1)
    words = st.lists(st.integers(0, 2**32 - 1), min_size=ops, max_size=ops).map(tuple)
    ids = draw(st.lists(WHOLE, min_size=1, max_size=4, unique=True))
    tensor = st.sampled_from(ids)
    names = draw(st.lists(st.text(), min_size=1, max_size=3).map(tuple))
    program = Program(
        names,
        tuple(draw(st.integers(0, len(names) - 1)) for _ in range(ops)),
        draw(st.one_of(st.just(()), words)),
        draw(words),
        draw(words),
    )
    traffic = st.builds(Traffic, WHOLE, WHOLE, WHOLE)
    action = st.one_of(
        st.builds(Offload, tensor, TIER, op, op, st.booleans()),
        st.builds(Prefetch, tensor, TIER, op, op),
    )
    actions = draw(st.lists(action, max_size=6))
    return Plan(
        TraceRef(draw(st.text()), draw(st.text()), draw(POSITIVE), ops, program),
        Hardware(
            Ssd(
                draw(POSITIVE),
                draw(POSITIVE),
                draw(WHOLE),
                draw(POSITIVE),
                draw(st.none() | POSITIVE),
            ),
            HostLink(draw(POSITIVE), draw(POSITIVE)),
            draw(st.dictionaries(st.text(), st.text(), max_size=2)),
        ),
        Budget(draw(WHOLE), draw(WHOLE), draw(SHARE)),
        Policy(draw(st.text()), 0.0, draw(st.text()), draw(st.text()), draw(st.none() | SHARE)),
        Prediction(*(draw(WHOLE) for _ in range(5)), draw(traffic), draw(traffic)),
        tuple(
            PlannedTensor(i, draw(WHOLE), draw(st.text()), draw(st.text()), draw(op), draw(WHOLE))
            for i in ids
        ),
        tuple(sorted(actions, key=lambda a: a.after_op)),
        draw(controls()),
    )


def text_of(plan):
    sink = io.StringIO()
    write_plan(plan, sink)
    return sink.getvalue()


def sample():
    nothing = Traffic(0, 0, 0)
    program = Program(("x", "y"), (0, 1, 0), (1, 2, 3), (0, 0, 0), (0, 0, 0))
    return Plan(
        TraceRef("a" * 64, "b" * 64, 2, 3, program),
        Hardware(Ssd(10, 20, 30), HostLink(40, 50), {"ssd": "assumed"}),
        Budget(1 << 30, 0, 0.1),
        Policy("greedy", 0.0),
        Prediction(10, 11, 1, 10, 512, Traffic(100, 100, 0), nothing),
        (PlannedTensor(17, 100, "w", "parameter", 0, 1),),
        (Offload(17, "ssd", 0, 1, write=True), Prefetch(17, "ssd", 1, 2)),
    )  # fmt: skip


@examples(40)
@given(plans())
def test_a_plan_reads_back_as_it_was_written(plan):
    text = text_of(plan)
    assert read_plan(io.StringIO(text)) == plan
    assert text_of(read_plan(io.StringIO(text))) == text


def test_the_form_of_the_file():
    text = text_of(sample())
    lines = text.splitlines()
    document = json.loads(text)
    assert document["format"] == "teraio-plan/1"
    assert set(document) == {
        "format", "trace", "hardware", "budget", "controls", "policy", "prediction", "tensors",
        "actions",
    }  # fmt: skip
    offload = {"tensor": 17, "do": "offload", "to": "ssd", "after_op": 0, "gone_by_op": 1,
               "write": True}  # fmt: skip
    prefetch = {"tensor": 17, "do": "prefetch", "from": "ssd", "after_op": 1, "needed_by_op": 2}
    assert document["actions"] == [offload, prefetch]
    assert f"  {json.dumps(offload)}," in lines
    assert f"  {json.dumps(prefetch)}" in lines
    assert sum('"program"' in line for line in lines) == 1
    assert text.endswith("}\n")


def test_the_seconds_a_policy_took_are_not_in_the_file(tmp_path):
    slow = replace(sample(), policy=Policy("greedy", 12.5))
    assert text_of(slow) == text_of(sample())
    write_plan(slow, tmp_path / "plan.json")
    assert read_plan(tmp_path / "plan.json") == sample()


def test_files_from_before_there_were_controls_are_read():
    document = json.loads(text_of(sample()))
    del document["controls"]
    for key in ("drives", "tbw_bytes"):
        del document["hardware"]["ssd"][key]
    plan = read_plan(io.StringIO(json.dumps(document)))
    assert plan == sample()
    assert plan.controls == NO_CONTROLS
    assert (plan.hardware.ssd.drives, plan.hardware.ssd.tbw_bytes) == (1, None)


def test_no_such_file(tmp_path):
    with pytest.raises(InputMissingError, match=r"plan\.json"):
        read_plan(tmp_path / "plan.json")
    with pytest.raises(InputMissingError):
        sha256_of(tmp_path / "plan.json")


def test_sha256_of_a_file(tmp_path):
    (tmp_path / "f").write_bytes(b"abc")
    assert sha256_of(tmp_path / "f") == hashlib.sha256(b"abc").hexdigest()


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "empty"),
        (" \n", "empty"),
        ("{", "not a plan"),
        ("[]", "no JSON object"),
        ("{}", "another kind"),
        ('{"format": "other/1"}', "another kind"),
        ('{"format": 3}', "another kind"),
        ('{"format": "teraio-plan/2"}', "format 2; this teraio reads up to 1"),
        ('{"format": "teraio-plan/1"}', "`trace` is missing"),
        ("[" * 100_000, "not a plan"),
        ('{"format": ' + "9" * 10_000 + "}", "not a plan"),
        ('{"format": NaN}', "not a plan"),
    ],
)
def test_texts_that_are_no_plan(text, complaint):
    with pytest.raises(BadInputError, match=complaint):
        read_plan(io.StringIO(text), name="p")


def test_a_trace_is_not_a_plan(tmp_path):
    path = tmp_path / "trace.parquet"
    write_trace(training_trace(2), path)
    with pytest.raises(BadInputError, match="not a plan"):
        read_plan(path)


@pytest.mark.parametrize(
    ("part", "key"),
    [("trace", "sha256"), ("trace", "fingerprint"), ("policy", "name"), ("policy", "\ud800")],
)
def test_half_a_surrogate_pair_is_no_text(part, key):
    document = json.loads(text_of(sample()))
    document[part][key] = "whole: \U0001f600"
    read_plan(io.StringIO(json.dumps(document).replace('"\\ud800"', '"x"')))
    document[part][key] = "\udfff"
    with pytest.raises(BadInputError, match="surrogates not allowed"):
        read_plan(io.StringIO(json.dumps(document)))


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("trace", "ops"), 0),
        (("trace", "ops"), 2),
        (("trace", "ops"), 1 << 40),
        (("trace", "ops"), True),
        (("trace", "ops"), 3.0),
        (("trace", "sha256"), 5),
        (("trace", "program"), []),
        (("trace", "program", "name"), "!!"),
        (("trace", "program", "name"), "é"),
        (("trace", "program", "names"), ["x"]),
        (("trace", "program", "names"), [1, 2]),
        (("hardware", "ssd", "latency_ns"), -1),
        (("hardware", "ssd", "read_bytes_per_s"), 0),
        (("hardware", "source"), {"ssd": 4}),
        (("budget", "margin"), 1.0),
        (("budget", "margin"), "0"),
        (("budget", "memory_bytes"), 2**63),
        (("hardware", "ssd", "drives"), 0),
        (("hardware", "ssd", "tbw_bytes"), 0),
        (("controls",), []),
        (("controls", "tiers"), "ssd"),
        (("controls", "tiers"), ["tape"]),
        (("controls", "keep"), [1]),
        (("controls", "keep"), ["("]),
        (("controls", "never_ssd"), ["a", "x{99999999999}"]),
        (("controls", "min_tensor_bytes"), -1),
        (("controls", "ssd_write_bytes"), "1GiB"),
        (("policy", "gap"), "no"),
        (("prediction", "ssd", "to_gpu_bytes"), None),
        (("tensors", 0), 17),
        (("tensors", 0, "nbytes"), -100),
        (("tensors", 0, "first_op"), 3),
        (("tensors",), {}),
        (("tensors",), []),
        (("actions", 0, "tensor"), 18),
        (("actions", 0, "do"), "recompute"),
        (("actions", 0, "to"), "tape"),
        (("actions", 0, "write"), 1),
        (("actions", 0, "after_op"), 2),
        (("actions", 0, "gone_by_op"), 3),
        (("actions", 1, "needed_by_op"), -1),
    ],
)
def test_wrong_values_are_named(path, value):
    document = json.loads(text_of(sample()))
    place = document
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    with pytest.raises(BadInputError, match=r"^`p`: "):
        read_plan(io.StringIO(json.dumps(document)), name="p")


def test_a_packing_that_unpacks_to_more_than_the_ops_is_refused():
    from teraio.profiler.trace import pack_words

    document = json.loads(text_of(sample()))
    document["trace"]["program"]["signature"] = pack_words((0,) * 1_000_000)
    with pytest.raises(BadInputError, match="signature"):
        read_plan(io.StringIO(json.dumps(document)))


@examples(60)
@given(st.data())
def test_a_damaged_file_is_refused_or_read_never_a_crash(data):
    text = text_of(sample())
    start = data.draw(st.integers(0, len(text)))
    end = data.draw(st.integers(start, min(len(text), start + 30)))
    damaged = text[:start] + data.draw(st.text(max_size=6)) + text[end:]
    try:
        read_plan(io.StringIO(damaged))
    except BadInputError as error:
        assert error.hint


@given(st.integers(0, 5000))
def test_a_truncated_file_is_refused(length):
    text = text_of(sample())
    if length < len(text.rstrip()):
        with pytest.raises(BadInputError):
            read_plan(io.StringIO(text[:length]))
