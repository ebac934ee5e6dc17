"""An estimate that cannot be gamed: loops times their trips, and no total where something is not counted."""

from __future__ import annotations

import pytest

pytest.importorskip("jax")

from pfvm.runtime.topology import chips
from pfvm.runtime.xla.cycles import Estimate, estimate
from pfvm.runtime.xla.tpu_report import judged, least_seconds


def cycles(count: int) -> str:
    """What the compiler writes behind an instruction that it has modelled."""
    return f'backend_config={{"window_config":{{"estimated_cycles":"{count}"}}}}'


PRODUCT = """\
%product (a: f32[128,512], b: f32[512,512]) -> f32[128,512] {
  %a = f32[128,512]{1,0:T(8,128)} parameter(0)
  %b = f32[512,512]{1,0:T(8,128)} parameter(1)
  ROOT %c = f32[128,512]{1,0:T(8,128)} convolution(%a, %b), dim_labels=bf_io->bf
}
"""
STATE = "(s32[]{:T(128)}, f32[128,512]{1,0:T(8,128)}, f32[512,512]{1,0:T(8,128)})"
FLOPS = 2 * 128 * 512 * 512


def loop(condition: str, start: int = 0, step: str = "add(%i, %one), metadata={}", constant: int = 1) -> Estimate:
    """Of a while that multiplies (1,000 cycles) and counts in element 0 of its state."""
    return estimate(f"""HloModule m, is_scheduled=true

{PRODUCT}
%body (s: {STATE}) -> {STATE} {{
  %s = {STATE} parameter(0)
  %one = s32[]{{:T(128)}} constant({constant})
  %i = s32[]{{:T(128)}} get-tuple-element(%s), index=0
  %next = s32[]{{:T(128)}} {step}
  %x = f32[128,512]{{1,0:T(8,128)}} get-tuple-element(%s), index=1
  %w = f32[512,512]{{1,0:T(8,128)}} get-tuple-element(%s), index=2
  %y = f32[128,512]{{1,0:T(8,128)}} fusion(%x, %w), kind=kOutput, calls=%product, {cycles(1000)}
  ROOT %t = {STATE} tuple(%next, %y, %w)
}}

%condition (s.1: {STATE}) -> pred[] {{
  %s.1 = {STATE} parameter(0)
  %n = s32[]{{:T(128)}} constant(10)
  %i.1 = s32[]{{:T(128)}} get-tuple-element(%s.1), index=0
{condition}
}}

ENTRY %main (x.1: f32[128,512], w.1: f32[512,512]) -> f32[128,512] {{
  %x.1 = f32[128,512]{{1,0:T(8,128)}} parameter(0)
  %w.1 = f32[512,512]{{1,0:T(8,128)}} parameter(1)
  %zero = s32[]{{:T(128)}} constant({start})
  %first = s32[]{{:T(128)}} copy(%zero)
  %copy = f32[128,512]{{1,0:T(8,128)}} copy(%x.1), {cycles(7)}
  %state = {STATE} tuple(%first, %copy, %w.1)
  %while = {STATE} while(%state), condition=%condition, body=%body
  ROOT %out = f32[128,512]{{1,0:T(8,128)}} get-tuple-element(%while), index=1
}}
""")


LESS = "  ROOT %lt = pred[]{:T(512)} compare(%i.1, %n), direction=LT"


def test_a_loop_counts_its_body_as_often_as_it_runs() -> None:
    found = loop(LESS)
    assert (found.cycles, found.loops) == (10 * 1000 + 7, {"while": 10})
    assert found.flops == {"f32": 10 * FLOPS}


@pytest.mark.parametrize(
    ("condition", "start", "constant", "trips"),
    [
        (LESS, 3, 1, 7),
        (LESS, 0, 3, 4),
        (LESS, 12, 1, 0),
        (LESS.replace("LT", "LE"), 0, 1, 11),
        (LESS.replace("LT", "NE"), 0, 2, 5),
        (LESS.replace("LT", "GT"), 16, -2, 3),
        ("  ROOT %gt = pred[]{:T(512)} compare(%n, %i.1), direction=GT", 0, 1, 10),
    ],
)
def test_every_form_of_a_counter_is_read(condition: str, start: int, constant: int, trips: int) -> None:
    found = loop(condition, start, constant=constant)
    assert found.loops == {"while": trips}
    assert found.cycles == 1000 * trips + 7


@pytest.mark.parametrize(
    "condition",
    [
        "  %p = pred[]{:T(512)} parameter(1)\n  %lt = pred[]{:T(512)} compare(%i.1, %n), direction=LT\n"
        "  ROOT %and = pred[]{:T(512)} and(%lt, %p)",
        LESS.replace("LT", "EQ"),
        LESS.replace("%i.1, %n", "%n, %n"),
    ],
)
def test_trips_that_are_not_known_leave_no_total_and_no_flops(condition: str) -> None:
    found = loop(condition)
    assert (found.cycles, found.total_flops, found.modelled) == (None, None, 1007)
    assert found.reason() == "the trips of loop while are not known before it runs"


def test_a_counter_that_data_moves_is_not_known() -> None:
    assert loop(LESS, step="multiply(%i, %one)").cycles is None


def entry(lines: str, more: str = "") -> Estimate:
    """Of a module with these instructions; %x is f32[1024,1024], %p a pred[]."""
    return estimate(f"""HloModule m, is_scheduled=true

{more}
ENTRY %main (x: f32[1024,1024], p: pred[]) -> f32[1024,1024] {{
  %x = f32[1024,1024]{{1,0:T(8,128)}} parameter(0)
  %p = pred[]{{:T(512)}} parameter(1)
  %tanh = f32[1024,1024]{{1,0:T(8,128)}} tanh(%x), {cycles(500)}
{lines}
}}
""")


ARRAY = "f32[1024,1024]{1,0:T(8,128)}"


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (f'%y = {ARRAY} custom-call(%x), custom_call_target="Cholesky"', "custom call Cholesky"),
        (f"%y = {ARRAY} sort(%x), dimensions={{0}}, to_apply=%less", "the compiler states no cycles for sort"),
        (f"%y = {ARRAY} exponential(%x)", "the compiler states no cycles for exponential"),
        (f"%y = {ARRAY} all-reduce(%x), to_apply=%less", "the compiler states no cycles for all-reduce"),
        (f"%y = {ARRAY} reverse(%x), dimensions={{0}}", "more than 10% of all bytes moved"),
    ],
)
def test_what_the_compiler_does_not_estimate_leaves_no_total(line: str, reason: str) -> None:
    found = entry(f"  ROOT {line}")
    assert (found.cycles, found.modelled) == (None, 500)
    assert reason in str(found.reason())


def test_what_no_unit_works_on_is_free_and_copies_run_beside() -> None:
    found = entry(f"""\
  %buffer = {ARRAY} custom-call(), custom_call_target="AllocateBuffer"
  %copy-start = ({ARRAY}, {ARRAY}, u32[]{{:S(2)}}) copy-start(%x)
  %copy-done = {ARRAY} copy-done(%copy-start)
  %pair = ({ARRAY}, pred[]{{:T(512)}}) tuple(%copy-done, %p)
  %number = f32[]{{:T(128)}} constant(1)
  %sum = f32[]{{:T(128)S(6)}} add(%number, %number)
  ROOT %flat = {ARRAY} bitcast(%tanh)""")
    assert (found.cycles, found.beside) == (500, 4 << 20)


def test_a_conditional_counts_its_longest_branch() -> None:
    branch = """%{0} (b.{0}: f32[1024,1024]) -> f32[1024,1024] {{
  %b.{0} = {1} parameter(0)
  ROOT %r.{0} = {1} tanh(%b.{0}), {2}
}}
"""
    more = branch.format("short", ARRAY, cycles(10)) + branch.format("long", ARRAY, cycles(90))
    line = f"  ROOT %y = {ARRAY} conditional(%p, %x, %tanh), branch_computations={{%short, %long}}"
    found = entry(line, more)
    assert (found.cycles, found.branches) == (590, 1)


def test_64_bit_counters_which_a_tpu_has_as_two_are_read() -> None:
    state = "(u32[]{:T(128)}, u32[]{:T(128)}, f32[1024,1024]{1,0:T(8,128)})"
    more = f"""%body (s: {state}) -> {state} {{
  %s = {state} parameter(0)
  %one = u32[]{{:T(128)}} constant(1)
  %low = u32[]{{:T(128)}} get-tuple-element(%s), index=0
  %high = u32[]{{:T(128)}} get-tuple-element(%s), index=1
  %next = u32[]{{:T(128)}} add(%low, %one)
  %a = {ARRAY} get-tuple-element(%s), index=2
  %b = {ARRAY} tanh(%a), {cycles(30)}
  ROOT %t = {state} tuple(%next, %high, %b)
}}

%condition (s.1: {state}) -> pred[] {{
  %s.1 = {state} parameter(0)
  %zero = s32[]{{:T(128)}} constant(0)
  %none = u32[]{{:T(128)}} constant(0)
  %limit = u32[]{{:T(128)}} constant(5)
  %high.1 = u32[]{{:T(128)}} get-tuple-element(%s.1), index=1
  %signed = s32[]{{:T(128)}} bitcast-convert(%high.1)
  %below = pred[]{{:T(512)}} compare(%signed, %zero), direction=LT
  %same = pred[]{{:T(512)}} compare(%high.1, %none), direction=EQ
  %low.1 = u32[]{{:T(128)}} get-tuple-element(%s.1), index=0
  %less = pred[]{{:T(512)}} compare(%low.1, %limit), direction=LT
  %both = pred[]{{:T(512)}} and(%same, %less)
  ROOT %either = pred[]{{:T(512)}} or(%below, %both)
}}
"""
    found = entry(
        f"""\
  %start = u32[]{{:T(128)}} constant(0)
  %state = {state} tuple(%start, %start, %tanh)
  %while = {state} while(%state), condition=%condition, body=%body
  ROOT %y = {ARRAY} get-tuple-element(%while), index=2""",
        more,
    )
    assert (found.cycles, found.loops) == (500 + 5 * 30, {"while": 5})


def test_convolutions_count_what_meets_data() -> None:
    """As XLA's own count: padding adds nothing, and a batch of products is a convolution with a hole in each step."""
    same = entry(
        """  %k = f32[3,3,8,16]{3,2,1,0:T(8,128)} constant({...})
  %i = f32[2,4,4,8]{3,2,1,0:T(8,128)} constant({...})
  %c = f32[2,4,4,16]{3,2,1,0:T(8,128)} convolution(%i, %k), window={size=3x3 pad=1_1x1_1}, dim_labels=b01f_01io->b01f
  ROOT %y = f32[] constant(0)"""
    )
    assert same.flops == {"f32": 2 * 2 * 16 * 8 * (2 + 3 + 3 + 2) ** 2}
    batch = entry(
        """  %i = bf16[16,128,64]{2,1,0:T(8,128)(2,1)} constant({...})
  %k = bf16[16,64,32]{2,1,0:T(8,128)(2,1)} constant({...})
  %c = f32[16,128,32]{2,1,0:T(8,128)} convolution(%i, %k), window={size=16 stride=15 lhs_dilate=16}, \
dim_labels=0bf_0io->0bf
  ROOT %y = f32[] constant(0)"""
    )
    assert batch.flops == {"bf16": 2 * 16 * 128 * 64 * 32}


def test_a_sum_below_what_the_peak_allows_is_no_total() -> None:
    """An instruction whose cycles are lost shows: the matrix units cannot be that fast."""
    found, chip = loop(LESS), chips()["v5e"]
    least = least_seconds(found, chip)
    assert least == pytest.approx(10 * FLOPS / 197e12)
    assert judged(found, chip)[0] == found.cycles
    found.modelled = int(least * (chip.clock_hz or 0)) - 1
    total, why = judged(found, chip)
    assert total is None and "is below flops / peak" in str(why)
