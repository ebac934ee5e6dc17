"""Programs in the style of MN-Core's MLSDK run as they are, but for the import and the device string."""

from __future__ import annotations

import copy
import dataclasses
import pathlib
from typing import Any, NamedTuple

import pytest

torch = pytest.importorskip("torch")

from pfvm.errors import InputError, InvalidModelError, OptionError, PfvmError  # noqa: E402
from pfvm.runtime.mlsdk import (  # noqa: E402
    Context,
    MNCoreAdam,
    MNCoreAdamW,
    MNCoreLRScheduler,
    MNCoreSGD,
    MNDevice,
    TensorProxy,
    register_pytree_dataclass,
    register_pytree_namedtuple,
    set_buffer_name_in_optimizer,
    set_tensor_name,
    set_tensor_name_in_module,
    storage,
)
from torch import nn  # noqa: E402

from .train_support import Mlp, batches  # noqa: E402

DEVICES = ["pfvm:cpu", "xla:cpu"]
BATCH = next(batches())


@pytest.fixture(params=DEVICES)
def context(request: Any) -> Context:
    if request.param.startswith("xla"):
        pytest.importorskip("jax")
    context = Context(MNDevice(request.param))
    Context.switch_context(context)
    return context


def register(context: Context, model: nn.Module, prefix: str) -> None:
    set_tensor_name_in_module(model, prefix)
    for p in model.parameters():
        context.register_param(p)
    for b in model.buffers():
        context.register_buffer(b)


def make_train_step(model: nn.Module, optimizer: torch.optim.Optimizer) -> Any:
    def train_step(inp: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        optimizer.zero_grad()
        loss = model(inp["x"], inp["t"])["loss"]
        loss.backward()
        optimizer.step()
        return {"loss": loss}

    return train_step


OPTIMIZERS = {
    "sgd": (lambda p: MNCoreSGD(p, 0.1, 0.9, 0.0), lambda p: torch.optim.SGD(p, 0.1, 0.9, 0.0)),
    "adam": (lambda p: MNCoreAdam(p, lr=0.01, chainer_use_torch=True), lambda p: torch.optim.Adam(p, lr=0.01)),
    "adamw": (lambda p: MNCoreAdamW(p, lr=0.01), lambda p: torch.optim.AdamW(p, lr=0.01)),
}


@pytest.mark.parametrize("kind", OPTIMIZERS)
@pytest.mark.parametrize("registered", [True, False], ids=["registered", "found"])
def test_train_and_eval_contexts_share_weights(kind: str, registered: bool, tmp_path: pathlib.Path) -> None:
    device = MNDevice("pfvm:cpu")
    train_context, eval_context = Context(device), Context(device)
    torch.manual_seed(0)
    model = Mlp()
    twin = copy.deepcopy(model)
    optimizer, twin_optimizer = (make(m.parameters()) for make, m in zip(OPTIMIZERS[kind], (model, twin)))
    if registered:
        register(train_context, model, "model_with_loss_fn")
        set_buffer_name_in_optimizer(optimizer, "optimizer")
        train_context.register_optimizer_buffers(optimizer)
        eval_context.registry.register("evaluated", model)

    def eval_step(inp: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        _, predicted = torch.max(model(inp["x"], inp["t"])["y"], 1)
        return {"correct": (predicted == inp["t"]).sum()}

    step = train_context.compile(make_train_step(model, optimizer), BATCH, storage.path(tmp_path) / "train_step")
    evaluate = eval_context.compile(eval_step, BATCH, storage.path(tmp_path) / "eval_step", training=False)
    twin_step = make_train_step(twin, twin_optimizer)
    data = batches()
    for _ in range(4):
        batch = next(data)
        loss = step(batch)["loss"]
        assert isinstance(loss, TensorProxy)
        assert loss.item() == pytest.approx(twin_step(batch)["loss"].item(), rel=1e-4)
    expected = (twin(**BATCH)["y"].argmax(1) == BATCH["t"]).sum()
    assert evaluate(BATCH)["correct"].item() == expected
    train_context.synchronize()
    assert type(model.linear1.weight) is nn.Parameter, "synchronize brings values to the host"
    for a, e in zip(model.parameters(), twin.parameters()):
        torch.testing.assert_close(a, e, rtol=1e-4, atol=1e-5)
    assert {p.name for p in (tmp_path / "train_step").iterdir()} >= {"model.onnx", "pfvm.onnx", "signature.json"}


def test_two_models_in_one_context(context: Context, tmp_path: pathlib.Path) -> None:
    model0, model1 = (nn.Linear(4, 4, bias=False) for _ in range(2))
    model0.weight = nn.Parameter(torch.ones(4, 4))
    model1.weight = nn.Parameter(torch.full((4, 4), 2.0))
    register(context, model0, "model0")
    register(context, model1, "model1")
    sample = {"x": torch.ones(4, 4)}
    infer0 = context.compile(lambda inp: {"out": model0(inp["x"])}, sample, tmp_path / "infer0")
    infer1 = context.compile(lambda inp: {"out": model1(inp["x"])}, sample, tmp_path / "infer1")
    torch.testing.assert_close(infer0(sample)["out"].cpu(), torch.full((4, 4), 4.0))
    torch.testing.assert_close(infer1(sample)["out"].cpu(), torch.full((4, 4), 8.0))
    again = nn.Linear(4, 4, bias=False)
    set_tensor_name_in_module(again, "model1")
    with pytest.raises(OptionError, match="another tensor of this context is named 'model1@weight'"):
        context.register_param(again.weight)
    with pytest.raises(InputError, match="has no name; call set_tensor_name_in_module"):
        context.register_param(torch.ones(2))


def test_proxies_of_inputs_and_weights(context: Context, tmp_path: pathlib.Path) -> None:
    model = nn.Linear(4, 3)
    register(context, model, "model")
    infer = context.compile(lambda inp: {"out": model(inp["x"])}, {"x": torch.zeros(2, 4)}, tmp_path)
    inputs = infer.allocate_input_proxy()
    assert {name: (p.shape, p.dtype) for name, p in inputs.items()} == {"x": ((2, 4), torch.float32)}
    inputs["x"].load_from(torch.ones(2, 4), clone=False)
    torch.testing.assert_close(infer(inputs)["out"].cpu(), model(torch.ones(2, 4)).detach())
    inputs["x"][1].load_from(torch.zeros(4))
    weight = context.get_registered_value_proxy(model.weight)
    weight.load_from(torch.full((3, 4), 0.5))
    out = infer(inputs)["out"]
    torch.testing.assert_close(out, model(torch.tensor([[1.0] * 4, [0.0] * 4])).detach(), check_dtype=True)
    part = out[:, -2:]
    assert isinstance(part, TensorProxy) and part.shape == (2, 2)
    assert torch.allclose(part, model.bias[-2:] + torch.tensor([[2.0], [0.0]]))
    assert (part - part.cpu()).abs().max().item() == 0
    with pytest.raises(InputError, match=r"load_from: expected torch.float32 \[2, 4\], got torch.float32 \[4\]"):
        inputs["x"].load_from(torch.ones(4))
    with pytest.raises(InputError, match="not registered"):
        context.get_registered_value_proxy(torch.ones(2))


def test_gradients_on_the_device_and_an_optimizer_on_the_host(context: Context, tmp_path: pathlib.Path) -> None:
    model = nn.Linear(8, 4)
    twin = copy.deepcopy(model)
    register(context, model, "model")
    for name, p in model.named_parameters():
        p.grad = nn.Parameter(torch.zeros_like(p))
        set_tensor_name(p.grad, f"{name}_grad")
        context.register_param(p.grad)

    def calc_grads(inp: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        loss = nn.functional.cross_entropy(model(inp["x"]), inp["t"])
        loss.backward()
        return {"loss": loss}

    compiled = context.compile(calc_grads, BATCH, tmp_path)
    for _ in range(2):
        compiled(BATCH)
        nn.functional.cross_entropy(twin(BATCH["x"]), BATCH["t"]).backward()
    context.synchronize()
    for p, q in zip(model.parameters(), twin.parameters()):
        torch.testing.assert_close(p.grad.cpu(), q.grad, rtol=1e-4, atol=1e-5)
    with torch.no_grad():
        for p in model.parameters():
            context.get_registered_value_proxy(p.grad).load_from(p.grad.zero_(), clone=False)
    compiled(BATCH)
    for p, q in zip(model.parameters(), twin.parameters()):
        torch.testing.assert_close(p.grad.cpu() * 2, q.grad, rtol=1e-4, atol=1e-5)


@register_pytree_namedtuple
class Pair(NamedTuple):
    x: torch.Tensor
    y: torch.Tensor


@register_pytree_dataclass
@dataclasses.dataclass
class Record:
    x: torch.Tensor


def test_automap(context: Context, tmp_path: pathlib.Path) -> None:
    def add(first: tuple[Any, ...], pair: Pair, *, some: list[Any], record: Record) -> Any:
        total = first[0] + pair.x + some[0] + record.x
        return Pair(total, pair.y * 2), Record(total + 1)

    def arguments(value: float) -> tuple[tuple[Any, ...], dict[str, Any]]:
        t = torch.full((3, 4), value)
        return ((t,), Pair(t, t)), {"some": [t], "record": Record(t)}

    args, kwargs = arguments(0.0)
    compiled = context.compile_automap(add, args, kwargs, tmp_path, options={"float_dtype": "float"})
    for run in (compiled, context.load_codegen_dir(tmp_path)):
        args, kwargs = arguments(1.0)
        pair, record = run(*args, **kwargs)
        assert isinstance(pair, Pair) and isinstance(record, Record) and isinstance(record.x, TensorProxy)
        torch.testing.assert_close(pair.x.cpu(), torch.full((3, 4), 4.0))
        torch.testing.assert_close(record.x.cpu(), torch.full((3, 4), 5.0))
    with pytest.raises(InputError, match="compile_automap"):
        compiled.allocate_input_proxy()


def test_a_loaded_folder_without_the_function(context: Context, tmp_path: pathlib.Path) -> None:
    sample = {"x": torch.zeros(3, 4), "y": torch.zeros(3, 4)}
    context.compile(lambda inp: {"out": inp["x"] + inp["y"], "rows": 3}, sample, tmp_path / "add")
    loaded = context.load_codegen_dir(storage.path(tmp_path / "add"))
    result = loaded({"x": torch.ones(3, 4), "y": torch.ones(3, 4)})
    assert result["rows"] == 3
    torch.testing.assert_close(result["out"].cpu(), torch.full((3, 4), 2.0))
    with pytest.raises(InvalidModelError, match=r"signature\.json: No such file"):
        context.load_codegen_dir(tmp_path)


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_a_loaded_training_step_goes_on_with_registered_state(kind: str, tmp_path: pathlib.Path) -> None:
    def program() -> tuple[Context, nn.Module, Any]:
        context = Context(MNDevice("pfvm:cpu"))
        torch.manual_seed(0)
        model = Mlp()
        optimizer = OPTIMIZERS[kind][0](model.parameters())
        register(context, model, "model")
        set_buffer_name_in_optimizer(optimizer, "optimizer")
        context.register_optimizer_buffers(optimizer)
        return context, model, optimizer

    context, model, optimizer = program()
    step = context.compile(make_train_step(model, optimizer), BATCH, tmp_path)
    losses = []
    rates = (*[optimizer.param_groups[0]["lr"]] * 2, 0.001)
    for rate in rates:
        optimizer.param_groups[0]["lr"] = rate
        losses.append(step(BATCH)["loss"].item())
    context, restored, optimizer = program()
    loaded = context.load_codegen_dir(tmp_path)
    for rate, loss in zip(rates, losses):
        optimizer.param_groups[0]["lr"] = rate
        assert loaded(BATCH)["loss"].item() == pytest.approx(loss, rel=1e-5)
    for (name, a), e in zip(restored.state_dict().items(), model.state_dict().values()):
        torch.testing.assert_close(a, e, rtol=1e-5, atol=1e-6, msg=lambda m, name=name: f"{name}: {m}")
    assert len(optimizer.state_dict()["state"]) == len(list(restored.parameters()))
    alone = Context(MNDevice("pfvm:cpu")).load_codegen_dir(tmp_path)  # nothing registered: it keeps state of its own
    assert [alone(BATCH)["loss"].item() for _ in range(2)] == pytest.approx(losses[:2], rel=1e-5)


def test_io_spec_constraints(context: Context, tmp_path: pathlib.Path) -> None:
    sample = torch.randn(8, 4)

    def producer(inp: dict[str, Any]) -> dict[str, Any]:
        return {"shared": inp["x"] * 2}

    consumer = context.compile(lambda inp: {"result": inp["shared"] + 1}, {"shared": sample}, tmp_path / "consumer")
    compiled = context.compile(
        producer, {"x": sample}, tmp_path / "producer", io_spec_constraints={"shared": consumer.input_specs["shared"]}
    )
    assert compiled.output_specs["shared"].is_memcopyable_to(consumer.input_specs["shared"])
    outputs = consumer(compiled({"x": torch.ones(8, 4)}))
    torch.testing.assert_close(outputs["result"].cpu(), torch.full((8, 4), 3.0))
    with pytest.raises(OptionError, match=r"'shared' is float\[2, 4\], but float\[8, 4\] is asked of it"):
        context.compile(producer, {"x": sample[:2]}, tmp_path / "other", io_spec_constraints=consumer.input_specs)


def test_learning_rate_schedulers(context: Context, tmp_path: pathlib.Path) -> None:
    torch.manual_seed(0)
    model = Mlp()
    twin = copy.deepcopy(model)
    optimizer, twin_optimizer = MNCoreSGD(model.parameters(), 0.1), torch.optim.SGD(twin.parameters(), 0.1)
    scheduler, twin_scheduler = (torch.optim.lr_scheduler.StepLR(o, 1, 0.5) for o in (optimizer, twin_optimizer))
    wrapped = MNCoreLRScheduler(scheduler, context)
    step, twin_step = (
        context.compile(make_train_step(model, optimizer), BATCH, tmp_path),
        make_train_step(twin, twin_optimizer),
    )
    for _ in range(3):
        step(BATCH)
        twin_step(BATCH)
        wrapped.step()
        twin_scheduler.step()
    assert wrapped.get_last_lr() == [0.0125]
    for a, e in zip(model.parameters(), twin.parameters()):
        torch.testing.assert_close(a, e, rtol=1e-4, atol=1e-5)


def test_backprop_adds_backward_and_the_optimizers_step(context: Context, tmp_path: pathlib.Path) -> None:
    torch.manual_seed(0)
    model = Mlp()
    twin = copy.deepcopy(model)
    optimizer, twin_optimizer = (torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9) for m in (model, twin))
    context.registry.register("model0", model)
    context.registry.register("optimizer0", optimizer)
    step = context.compile(
        lambda inp: {"loss": model(inp["x"], inp["t"])["loss"]},
        BATCH,
        tmp_path,
        optimizers=[optimizer],
        options={"backprop": True},
    )
    twin_step = make_train_step(twin, twin_optimizer)
    for number in (1, 2):
        extra = {"optimizer0@0@mncore_learning_rate": torch.tensor(0.2), "mncore_grad_scale_factor": torch.tensor(1)}
        loss = step({**BATCH, **extra, "optimizer0@0@mncore_global_step": torch.tensor(number)})["loss"]
        twin_optimizer.param_groups[0]["lr"] = 0.2
        assert loss.item() == pytest.approx(twin_step(BATCH)["loss"].item(), rel=1e-4)
    with pytest.raises(PfvmError, match="only 1 is accepted"):
        step({**BATCH, "mncore_grad_scale_factor": torch.tensor(2)})


def test_invalidate_keeps_values_and_refuses_later_calls(context: Context, tmp_path: pathlib.Path) -> None:
    torch.manual_seed(0)
    model = Mlp()
    twin = copy.deepcopy(model)
    step = context.compile(make_train_step(model, MNCoreSGD(model.parameters(), 0.1)), BATCH, tmp_path)
    step(BATCH)
    make_train_step(twin, torch.optim.SGD(twin.parameters(), 0.1))(BATCH)
    context.invalidate()
    assert type(model.linear1.weight) is nn.Parameter
    torch.testing.assert_close(model.linear1.weight, twin.linear1.weight, rtol=1e-4, atol=1e-5)
    with pytest.raises(PfvmError, match="train_step: its context was invalidated"):
        step(BATCH)
