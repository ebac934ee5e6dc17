"""The options of a plan: keyword arguments = flags of `pfvm plan`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, get_args

import pydantic
from pfvm.errors import OptionError, did_you_mean, flag

Scheduler = Literal["always_from_dram", "reuse_consecutive", "spill_opt", "auto_recompute_sa"]
SCHEDULERS: tuple[Scheduler, ...] = get_args(Scheduler)


class PlanOptions(pydantic.BaseModel):
    """How to plan. A flag `--float-dtype=half` is the field `float_dtype`."""

    model_config = pydantic.ConfigDict(extra="forbid", frozen=True)

    machine: str = pydantic.Field("mncore2", description="a machine that is shipped, or a TOML file")
    scheduler: Scheduler = pydantic.Field(
        "reuse_consecutive", description="how order, spills and recomputation are chosen"
    )
    float_dtype: Literal["float", "mixed", "half"] = pydantic.Field(
        "mixed", description="floating point values in Float, in Half, or each in what it needs"
    )
    dtypes: dict[str, str] = pydantic.Field(
        {}, description="dtype of a node's outputs, by its name or by that of one of them"
    )
    shapes: dict[str, tuple[pydantic.PositiveInt, ...]] = pydantic.Field(
        {}, description="shapes of inputs, by the input's name"
    )
    turn_weights: bool = pydantic.Field(
        False, description="copy a product's data and deal its weight where that is cheaper than streaming the weight"
    )
    sram_budget: float | None = pydantic.Field(
        None, gt=0, description="part of each local memory that the plan may use (up to 1), or long words"
    )
    prefetch: bool = pydantic.Field(False, description="let transfers from DRAM overlap with compute")
    search_steps: pydantic.NonNegativeInt = pydantic.Field(1000, description="candidates that a search looks at")
    time_budget: pydantic.PositiveFloat | None = pydantic.Field(None, description="seconds after which it stops")
    seed: int = pydantic.Field(0, description="of the search")
    unroll_limit: pydantic.PositiveInt = pydantic.Field(10_000, description="nodes that one loop may unroll to")

    @classmethod
    def parse(cls, values: Mapping[str, Any]) -> PlanOptions:
        """Options from a mapping of names to values. Raises OptionError naming the option."""
        try:
            return cls.model_validate(dict(values))
        except pydantic.ValidationError as error:
            raise OptionError("; ".join(_describe(item) for item in error.errors())) from error


_REPEATED = {"shapes": "shape", "dtypes": "dtype"}  # mappings here, a flag for each entry there


def _describe(item: Any) -> str:
    field, *inside = map(str, item["loc"])
    if item["type"] == "extra_forbidden":  # the command knows its flags itself
        known = list(PlanOptions.model_fields)
        return f"there is no option {field}{did_you_mean(field, known)}; options: {', '.join(known)}"
    name = flag(_REPEATED.get(field, field).replace("_", "-"), keyword=f"{field}=")
    return f"{': '.join((name, *inside))}: {item['msg']}, not {item['input']!r}"
