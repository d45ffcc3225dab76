"""The programs of the compatibility suite, in the order of the table.

`PROGRAMS` is what the tests run and what `docs/compatibility.md` lists.
"""

from __future__ import annotations

from dataclasses import dataclass

OPTIMIZERS = (
    "ASGD", "Adadelta", "Adafactor", "Adagrad", "Adam", "AdamW", "Adamax", "NAdam", "RAdam",
    "RMSprop", "Rprop", "SGD",
)  # fmt: skip
FUSED = ("Adagrad", "Adam", "AdamW", "SGD")


@dataclass(frozen=True)
class Program:
    """A program of the suite: a script with its words, and what the table says of it.

    `needs` are packages and commands beside torch. A fresh one runs in processes of its own, the
    others where torch was imported before. `note` says why what the table shows beside equal
    results is as it is: steps that differ from the plan, actions that were not carried out, ops
    over the budget. `refused` is the error of `teraio profile`, `stays` a tensor that must stay
    on the device, as `teraio plan --explain` takes it.
    """

    group: str
    about: str
    script: str
    words: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    is_module: bool = False
    fresh: bool = False
    note: str = ""
    refused: str = ""
    stays: str = ""

    @property
    def name(self) -> str:
        """What it is called in the table: the words of its command line."""
        return " ".join((self.script, *self.words))


def _optimizers() -> list[Program]:
    ways = {"one": "parameter by parameter", "foreach": "`foreach`", "fused": "fused"}
    found = [
        Program("Optimizers", f"`torch.optim.{name}`, {said}", "optimizers", ("stepped", name, way))
        for name in OPTIMIZERS
        for way, said in ways.items()
        if way != "fused" or name in FUSED
    ]
    for name, said in {"Muon": "on matrices", "LBFGS": "with its closure"}.items():
        about = f"`torch.optim.{name}`, {said}"
        found.append(Program("Optimizers", about, "optimizers", ("stepped", name, "usual")))
    return found


def _group(group: str, script: str, *rows: tuple[str, ...]) -> list[Program]:
    """Make the programs of one script; a row is its words, what it does, and a note."""
    return [
        Program(group, about, script, tuple(words.split()), note="".join(note))
        for words, about, *note in rows
    ]


SET_UP = "the first steps make states that are there later"
DATA = "the data decide what is computed"
LOOKS = "what is done between the steps is part of the step after it"
BUCKETS = "the buckets are made anew after the first step"
OTHER = "another thread's ops have no place in the plan; what they touch is there"

PROGRAMS: tuple[Program, ...] = (
    *_optimizers(),
    Program("Optimizers", "`SparseAdam` on sparse gradients, beside SGD", "optimizers", ("sparse",),
            note=f"{SET_UP}, and {DATA}: how many rows have a gradient"),
    *_group(
        "Loops", "loops",
        ("accumulated", "gradients of four micro-batches a step"),
        ("accumulated_at_once", "four micro-batches against one batch, equal but for rounding",
         "trains a second model, after whose set-up the shapes are others"),
        ("zeroed True", "`zero_grad(set_to_none=True)`"),
        ("zeroed False", "`zero_grad(set_to_none=False)`"),
        ("clipped norm", "`clip_grad_norm_`"),
        ("clipped one", "`clip_grad_norm_(foreach=False)`"),
        ("clipped value", "`clip_grad_value_`"),
        ("clipped hand", "gradients clipped by hand, with the norm as a tensor"),
        ("scaled single", "CPU `GradScaler` with a step that overflows and is skipped",
         "a step that is skipped or follows one has other ops"),
        ("scaled fused", "the same with a fused optimizer, which unscales by itself",
         "a step that is skipped or follows one has other ops"),
        ("unfrozen", "frozen layers, thawed and given to the optimizer in mid-training",
         "from then on the steps are others"),
        ("grown", "a layer added in mid-training with its parameters",
         "from then on the steps are others"),
        ("adversaries", "two optimizers: three critic steps for each of the generator",
         "a step ends with that of the first optimizer, so that three kinds of steps alternate"),
        ("averaged copy", "a moving average in a deep copy"),
        ("averaged swa", "`AveragedModel`, `SWALR`, `update_bn`", SET_UP),
        ("averaged multi", "`AveragedModel` in foreach ops, buffers too", SET_UP),
        ("in_backward", "an optimizer per parameter, stepped in backward", SET_UP),
        ("own", "an optimizer class of the script's own, which couples its parameters"),
        ("scheduled", "`OneCycleLR`, a rate that is a tensor, step hooks, two groups"),
        ("resumed", "model and optimizer loaded into new ones in mid-training",
         "the step that loads differs; what was planned for the old tensors has nothing to act on"),
    ),
    Program("Loops", "no optimizer: parameters updated by hand", "loops", ("by_hand",),
            refused="no `optimizer.step()` was seen"),
    *_group(
        "Shared and unusual memory", "storages",
        ("views", "narrowed, split, unbound, permuted, unfolded"),
        ("transposes", "a tensor and its transpose, both saved for backward"),
        ("expanded", "an expanded row: the bytes of one row"),
        ("strided", "`as_strided` windows that overlap, and writes through one"),
        ("detached", "`.data` and `detach` results that live on for ever",
         "each step has more to add up than the one before"),
        ("in_place", "ops in place, masks, a slice that is assigned"),
        ("out_given", "`out=`, also into tensors that grow",
         "what `out=` makes a tensor grow by is not foreseen"),
        ("resized", "`resize_`, `set_`, storages resized under a tensor",
         "what a storage is resized to is not foreseen"),
        ("data_replaced", "`.data =`, `swap_tensors`, weight and spectral norm",
         "the swap, and a parameter that is new"),
        ("kept_views", "views of the weights made before training, read in each step"),
        ("tied", "tied embedding and head, one layer applied three times"),
        ("flat", "weights and gradients that are views of two flat tensors",
         "set-up is not planned: one `cat` of it needs more than was foreseen"),
        ("reused_addresses", "tensors at addresses of those that are gone"),
        ("changed_after_saving", "changed after autograd saved it: torch's own error, caught"),
    ),
    *_group(
        "Autograd", "autograd",
        ("functions", "`autograd.Function`: saved tensors, `ctx` attributes, `mark_dirty`"),
        ("retained", "`retain_graph`, `retain_grad`, backward with `inputs=`"),
        ("penalised", "double backward: a gradient penalty"),
        ("meta_learned", "MAML: `autograd.grad(create_graph=True)`, `functional_call`"),
        ("each_sample", "gradients of each sample: `vmap` over `grad`"),
        ("ensemble", "an ensemble: `stack_module_state` and `vmap`"),
        ("forward_mode", "`jvp`, `jacrev`, `hessian`"),
        ("checkpointed plain", "`checkpoint(use_reentrant=False)` with dropout"),
        ("checkpointed reentrant", "`checkpoint(use_reentrant=True)`"),
        ("checkpointed list", "a checkpoint whose input is a list"),
        ("checkpointed selective", "selective checkpointing: a policy of what is saved"),
        ("checkpointed careless", "no random state kept, no check of determinism"),
        ("checkpointed sequential", "`checkpoint_sequential`"),
        ("hooked", "hooks on modules, tensors, gradients"),
        ("saved_elsewhere save_on_cpu", "`save_on_cpu`"),
        ("saved_elsewhere file", "saved-tensor hooks that keep tensors in files"),
        ("saved_elsewhere copy", "saved-tensor hooks that copy"),
        ("saved_elsewhere nothing", "saved-tensor hooks that do nothing"),
        ("read_twice", "what autograd saved, read from its nodes"),
        ("anomalies", "anomaly detection; a NaN in backward, caught", LOOKS),
        ("noisy", "`rrelu`, feature dropout, gumbel softmax"),
    ),
    *_group(
        "Dtypes and sizes", "dtypes",
        ("whole bfloat16", "a bfloat16 model"),
        ("whole float16", "a float16 model"),
        ("whole float64", "a float64 model"),
        ("complex_numbers", "complex weights, conjugates, Fourier transforms"),
        ("float8", "float8 weights of two kinds, cast at each use"),
        ("integers", "bool masks, tables of int64 to uint8"),
        ("odd_sizes", "empty, 0-dim and odd sizes; NaN, infinities, -0.0"),
        ("sparse_matrix", "sparse matrices of three layouts, a nested tensor"),
        ("quantised", "fake quantisation"),
        ("autocast bfloat16", "autocast to bfloat16, with its cache"),
        ("autocast float16", "autocast to float16"),
    ),
    *_group(
        "Layers", "layers",
        ("recurrent RNN", "`RNN`, two layers, both ways, dropout"),
        ("recurrent LSTM", "`LSTM`, the same"),
        ("recurrent GRU", "`GRU`, the same"),
        ("packed", "packed sequences, a state carried on from batch to batch"),
        ("cells", "`LSTMCell` in a loop"),
        ("attention flash", "scaled dot-product attention, causal"),
        ("attention math", "its math form with dropout"),
        ("attention mask", "with a mask of bool"),
        ("attention flex", "`flex_attention`, whose forward torch has for the CPU"),
        ("transformer", "`TransformerEncoder`, `MultiheadAttention` with maps"),
        ("conv last", "convolutions in channels_last, batch norm, pooling, in-place ReLU"),
        ("conv first", "the same in the usual layout"),
        ("conv_other", "1-d and 3-d, depthwise, dilated, reflecting, lazy"),
        ("bags", "embedding bags with offsets and weights, padding, max norm"),
        ("normed", "norms of six kinds, GLU, PReLU, bilinear"),
        ("losses", "CTC, triplets, KL, sorting, top-k, distances"),
        ("algebra", "QR, SVD, Cholesky, solve, inverse"),
        ("experts", "a mixture of experts", DATA),
    ),
    *_group(
        "Steps that differ", "flows",
        ("batches", "batches of four sizes", "a step of another shape"),
        ("branches", "layers skipped and repeated", DATA),
        ("stopped_early", "the best weights kept, an early end",
         "the best weights are not copied in each step"),
        ("caught", "errors in data, forward and backward, caught", "a step with an error in it"),
        ("interrupted", "Ctrl-C in backward, caught to save"),
        ("evaluated", "evaluation between steps, inference mode", LOOKS),
        ("generated", "generation between steps with a growing cache", LOOKS),
        ("cycles", "tensors in reference cycles"),
        ("pipelined", "batches ahead, results of past steps"),
        ("replayed", "a replay buffer, a target network", LOOKS),
    ),
    *_group(
        "Memory reached without an operator", "memory",
        ("torch_saved", "`torch.save` and `torch.load`, both formats, mapped too", LOOKS),
        ("safe_tensors", "safetensors saved and loaded", LOOKS),
        ("copied", "`deepcopy`, `copy`, pickling of model, states, gradients", LOOKS),
        ("read", "`tolist`, printing, iterating, raw bytes", LOOKS),
        ("in_numpy", "weights read with `numpy()`"),
        ("dlpack", "DLPack, both ways, written through", LOOKS),
        ("addressed", "gradients written through `data_ptr()`"),
        ("of_storages", "methods of storages", LOOKS),
        ("mapped", "frozen weights mapped from a file, others assigned from one"),
    ),
    Program("Memory reached without an operator", "weights that live in numpy arrays", "memory",
            ("from_numpy",), stays="parameter:0.weight"),
    Program("Memory reached without an operator", "a model in shared memory", "memory",
            ("shared",), stays="parameter:0.weight"),
    *_group(
        "Threads and processes", "threads",
        ("loaded 0", "a `DataLoader` without workers", "an epoch begins"),
        ("loaded 2", "a `DataLoader` with two workers",
         "an epoch begins, or a worker's batch comes"),
        ("prefetched", "a thread that prepares batches"),
        ("watched", "threads that read and change weights and states", OTHER),
        ("backward_elsewhere", "backward in another thread", OTHER),
        ("forked", "a process forked in mid-training", "all is on the device when it is forked"),
    ),
    Program("Threads and processes", "the whole training in another thread", "threads",
            ("all_elsewhere",), refused="no op of theirs was seen: another thread ran them"),
    *_group(
        "Compiled", "compiled",
        ("by aot_eager", "`torch.compile(backend='aot_eager')` with a graph break"),
        ("scripted script", "`torch.jit.script`"),
        ("scripted trace", "`torch.jit.trace`"),
        ("scripted fx", "`torch.fx.symbolic_trace`"),
    ),
    Program("Compiled", "`torch.compile` with inductor", "compiled", ("by", "inductor"),
            needs=("g++",)),
    *_group(
        "Distributed, a world of one over gloo", "distributed",
        ("ddp True", "DDP, gradients as views of its buckets", BUCKETS),
        ("ddp False", "DDP, gradients beside its buckets", BUCKETS),
        ("ddp_accumulated", "DDP with `no_sync` over micro-batches", BUCKETS),
        ("fsdp", "FSDP2: `fully_shard`"),
        ("dtensors", "tensor parallelism: weights that are DTensors"),
        ("sharded_states", "`ZeroRedundancyOptimizer` beside DDP", BUCKETS),
    ),
    *_group(
        "Fine-tuning", "finetuning",
        ("lora", "LoRA by hand: saved alone, merged and taken out", LOOKS),
        ("probed", "a frozen base under `no_grad`, a trained head"),
        ("distilled", "a teacher and a student with hooks"),
    ),
    Program("Fine-tuning", "LoRA by peft on a GPT-2 of transformers, checkpointed", "finetuning",
            ("peft_lora",), needs=("peft", "transformers")),
    Program("Whole programs", "a GPT-2 of transformers, AdamW, a schedule", "plain_loop",
            needs=("transformers",)),
    Program("Whole programs", "a transformers `Trainer` with checkpoints", "trainer",
            needs=("accelerate", "transformers"), note="saved a checkpoint before"),
    Program("Whole programs", "accelerate: accumulation, clipping, a schedule", "accelerated",
            needs=("accelerate",)),
    Program("Whole programs", "a tied language model, a gradient hook, an average",
            "tied_embeddings"),
    Program("Whole programs", "evaluation, checkpoints, loading, pickling", "evaluating",
            needs=("safetensors",), note=LOOKS),
    Program("Whole programs", "two models, each with its optimizer", "two_models", note=SET_UP),
    Program("Whole programs", "sparse gradients, weights that are new memory", "sparse_embedding",
            note=SET_UP),
    Program("Whole programs", "a frozen layer, buffers, data of numpy", "frozen_layer"),
    Program("Whole programs", "two worker processes of a data loader", "workers", fresh=True),
    Program("Whole programs", "a package started with `-m`", "package", is_module=True, fresh=True),
)  # fmt: skip

IN_MAKE_TEST = {
    "optimizers stepped Adam foreach", "optimizers stepped AdamW fused",
    "optimizers stepped SGD one", "optimizers stepped NAdam one",
    "optimizers stepped Adafactor foreach", "optimizers stepped Muon usual",
    "optimizers stepped LBFGS usual", "optimizers sparse",
    "loops accumulated", "loops clipped norm", "loops scaled fused", "loops unfrozen",
    "loops grown", "loops adversaries", "loops in_backward", "loops resumed",
    "storages views", "storages expanded", "storages in_place", "storages resized",
    "storages data_replaced", "storages tied", "storages changed_after_saving",
    "autograd functions", "autograd penalised", "autograd ensemble", "autograd forward_mode",
    "autograd checkpointed reentrant", "autograd checkpointed selective", "autograd hooked",
    "dtypes whole bfloat16", "dtypes complex_numbers", "dtypes float8", "dtypes odd_sizes",
    "dtypes autocast bfloat16",
    "layers recurrent LSTM", "layers packed", "layers attention flash", "layers attention flex",
    "layers conv last", "layers bags",
    "flows batches", "flows branches", "flows caught", "flows evaluated", "flows generated",
    "memory torch_saved", "memory safe_tensors", "memory copied", "memory read",
    "memory in_numpy", "memory dlpack", "memory shared",
    "threads loaded 2", "threads backward_elsewhere", "threads forked", "threads all_elsewhere",
    "compiled by inductor", "distributed ddp True", "distributed fsdp", "finetuning peft_lora",
    "trainer", "accelerated", "tied_embeddings", "two_models", "frozen_layer", "workers",
}  # fmt: skip


def is_thorough(program: Program) -> bool:
    """Whether `make test`, which must not take too long, leaves a program to `make compat`."""
    return program.name not in IN_MAKE_TEST
