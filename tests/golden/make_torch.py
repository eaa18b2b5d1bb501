#!/usr/bin/env python3
"""Makes tests/golden/torch, which tests/unit/test_torch.c reads: checkpoints as PyTorch writes them, made
without PyTorch, with the pickles of the standard library and classes of the same names.

    tests/golden/make_torch.py [FOLDER]

hf/              a Llama in Hugging Face's names and order of rows, which the others must equal
ddp.pt           torch.save() of torchtitan's names behind model._orig_mod., an optimizer with numbers, and
                 values that nobody needs: a random state, a call of os.system
titan/           DCP: the model at the root, wq, wk and wv fused in the optimizer, boxes of two dimensions in
                 four files, flat keys, lm_head.weight
fsdp/            accelerate's save_state() with FSDP: a DCP of the model and one of the optimizer
nested/          DCP: {"model", "optimizer"}, with Hugging Face's names, types of 16 and 64 bits, two groups
megatron/        DCP as Megatron-LM writes it: fused, the layers as one tensor, parameters in bf16 and fp32
universal/       DeepSpeed's universal format
zero1/           DeepSpeed's own, of ZeRO 1 with two ranks: no moments yet, a frozen parameter, a buffer, a model
                 in bf16
zero-tied/       of ZeRO 2 with one rank, the model of gpt2/: two names of one parameter
zero2/           of ZeRO 2 with three ranks: two groups of parameters, each parameter padded, and the end
zero3/           of ZeRO 3 with three ranks: two buffers, parts that end within rows
zero3-frozen/    of ZeRO 3 with two ranks: no moments yet, a frozen parameter in parts
elastic/         of ZeRO 2 with elastic_checkpoint: moments without padding, in lists
stage0/          of DeepSpeed without ZeRO
stage0-bf16/     the same of a model in bf16, with fp32 parameters in two groups, matrices first
bins/            Hugging Face's names in two files with an index; a tensor that is transposed
nanotron/        nanotron's: tp 2, pp 2, a model in bf16 whose optimizer has fp32 parameters, two groups
nanotron-zero/   of ZeRO 1 with tp 2 and dp 3: flat moments that end within rows; neighbours are rotated
nanotron-tied/   without an optimizer, on one rank; the table is the output layer
nanotron-step/   before and after a step of AdamW, tp 2, pp 2, tied; files of single ranks, to be put in their
                 place, with which copies differ: of a norm, of the table, and of a norm's fp32 parameters
shards/          safetensors files of two ranks, as DCP's writer leaves them
pytorch_model.bin  Hugging Face's names; transposed, tied and shared storages
zip64.pt         a tensor of six int64, in an archive that is written as a large one is
refused/         what cannot be read: compressed, big-endian, transformed items, Megatron-LM's buffers;
                 a tensor with a hole; DeepSpeed's universal format of ZeRO 3, and without ZeRO by a fused optimizer
nanogpt.pt       GPT-2 as nanoGPT saves it, two groups of parameters
gpt2/            the same model in Hugging Face's names
qwen3/           a Qwen3 in Hugging Face's names: norms of queries and keys
qwen3.pt         torch.save() of torchtitan's names for it, whose rows are in Hugging Face's order
qwen3-megatron/  the same as Megatron-LM has it, without moments

First moments are half of the parameters, second moments a quarter of their
magnitudes, AdamW's step is 7.
"""
import json
import math
import pickle
import re
import struct
import sys
import types
import zipfile
from collections import OrderedDict
from io import BytesIO
from pathlib import Path

LAYERS, HEADS, KV, WIDTH, DIM, FFN, VOCAB, CONTEXT = 2, 4, 2, 4, 16, 8, 11, 16

# ---- tensors: shapes and lists of numbers


class Tensor:
    def __init__(self, shape, data, dtype="float32", share=None):
        self.shape, self.data, self.dtype, self.share = tuple(shape), list(data), dtype, share
        self.offset, self.stride, self.attributes = 0, None, None  # None: contiguous

    def strides(self):
        if self.stride is not None:
            return self.stride
        out, n = [], 1
        for d in reversed(self.shape):
            out.insert(0, n)
            n *= d
        return tuple(out)

    def map(self, f):
        return Tensor(self.shape, map(f, self.data), self.dtype)

    def rows(self):
        w = len(self.data) // self.shape[0]
        return [self.data[i * w:(i + 1) * w] for i in range(self.shape[0])]

    def box(self, begin, size):
        if not self.shape:
            return Tensor((), self.data, self.dtype)
        rows = self.rows()[begin[0]:begin[0] + size[0]]
        if len(self.shape) == 2:
            rows = [r[begin[1]:begin[1] + size[1]] for r in rows]
        if len(self.shape) == 3:
            w = self.shape[2]
            rows = [r[a * w + begin[2]:a * w + begin[2] + size[2]] for r in rows
                    for a in range(begin[1], begin[1] + size[1])]
        return Tensor(size, [x for r in rows for x in r], self.dtype)


def of_rows(rows):
    return Tensor((len(rows), len(rows[0])), [x for r in rows for x in r])


def pack(dtype, data):
    if dtype == "bfloat16":
        return b"".join(struct.pack("<f", x)[2:] for x in data)
    code = {"float64": "d", "float32": "f", "float16": "e", "int64": "q", "int32": "i", "uint8": "B"}[dtype]
    return struct.pack(f"<{len(data)}{code}", *data)


# ---- classes with the names of PyTorch's, for the pickler

STORAGES = {"float64": "DoubleStorage", "float32": "FloatStorage", "float16": "HalfStorage",
            "bfloat16": "BFloat16Storage", "int64": "LongStorage", "int32": "IntStorage", "uint8": "ByteStorage"}


def module(name):
    if name not in sys.modules:
        sys.modules[name] = types.ModuleType(name)
    return sys.modules[name]


def stub(where, name, value=None):
    """A global that the pickler writes as WHERE.NAME."""
    value = value or type(name, (), {})
    value.__module__, value.__name__, value.__qualname__ = where, name, name
    setattr(module(where), name, value)
    return value


class Size(tuple):
    def __reduce__(self):
        return (Size, (tuple(self),))


class DType:
    def __init__(self, name):
        self.name = name

    def __reduce__(self):  # a text: a global of this name
        return self.name


class System:
    def __reduce__(self):
        return (module("os_").system, ("echo executed >&2; exit 1",))


def system(*_):
    raise RuntimeError


for storage in STORAGES.values():
    stub("torch", storage)
for dtype in STORAGES:
    setattr(module("torch"), dtype, DType(dtype))
    getattr(module("torch"), dtype).__module__ = "torch"
stub("torch", "Size", Size)
rebuild = stub("torch._utils", "_rebuild_tensor_v2", lambda *a: None)
rebuild_typed = stub("torch._tensor", "_rebuild_from_type_v2", lambda *a: None)
stub("torch", "Tensor")
get_layout = stub("torch.serialization", "_get_layout", lambda *a: None)
stub("os_", "system", system)
META = "torch.distributed.checkpoint.metadata"
Metadata, TensorStorageMetadata, BytesStorageMetadata, TensorProperties, ChunkStorageMetadata, MetadataIndex, \
    Encoding = (stub(META, n) for n in ("Metadata", "TensorStorageMetadata", "BytesStorageMetadata",
                                        "TensorProperties", "ChunkStorageMetadata", "MetadataIndex",
                                        "_MEM_FORMAT_ENCODING"))
StorageInfo = stub("torch.distributed.checkpoint.filesystem", "_StorageInfo")
for name in ("torch", "torch.distributed", "torch.distributed.checkpoint"):
    module(name)


def make(cls, **fields):
    x = cls.__new__(cls)
    x.__dict__.update(fields)
    return x


def tensor_properties(dtype):
    class State:
        pass
    x = TensorProperties.__new__(TensorProperties)
    x.__dict__["dtype"] = dtype
    return x


TensorProperties.__getstate__ = lambda self: (
    getattr(module("torch"), self.dtype), LAYOUT, False, ENCODING, False)


class Layout:
    def __reduce__(self):
        return (get_layout, ("torch.strided",))


class EncodingValue:
    def __reduce__(self):
        return (Encoding, (0,))


LAYOUT, ENCODING = Layout(), EncodingValue()

# ---- torch.save()


class Pickler(pickle.Pickler):
    """Storages are persistent ids; a Tensor is a call that has one."""

    def __init__(self, file):
        super().__init__(file, protocol=2)
        self.storages = []

    def persistent_id(self, obj):
        if not isinstance(obj, tuple) or not obj or obj[0] != "a storage":
            return None
        t = obj[1]
        key = t.share or t
        if key not in self.storages:
            self.storages.append(key)
        return ("storage", getattr(module("torch"), STORAGES[key.dtype]), str(self.storages.index(key)), "cpu",
                len(key.data))

    def reducer_override(self, obj):
        if isinstance(obj, Tensor):
            args = (("a storage", obj), obj.offset, obj.shape, obj.strides(), False, OrderedDict())
            if obj.attributes:
                return (rebuild_typed, (rebuild, module("torch").Tensor, args, obj.attributes))
            return (rebuild, args)
        return NotImplemented


def save(value, name="archive", whole=True, order=b"little", method=zipfile.ZIP_STORED):
    pkl = BytesIO()
    p = Pickler(pkl)
    p.dump(value)
    text = pkl.getvalue().replace(b"cos_\nsystem\n", b"cos\nsystem\n")
    out = BytesIO()

    class Stream:  # not seekable: sizes are behind the data, as PyTorch has them
        def write(self, b):
            return out.write(b)

        def flush(self):
            pass

    with zipfile.ZipFile(Stream(), "w", method) as z:
        def put(entry, data):
            i = zipfile.ZipInfo(f"{name}/{entry}")
            i.compress_type = method
            at = out.tell() + 30 + len(i.filename) + 4
            pad = -at % 64
            i.extra = struct.pack("<HH", 0x4246, pad) + b"Z" * pad  # "FB": data begin at a multiple of 64
            with z.open(i, "w") as f:
                f.write(data)
        put("data.pkl", text)
        put("byteorder", order)
        for k, t in enumerate(p.storages):
            put(f"data/{k}", pack(t.dtype, t.data))
        if whole:  # (parts of DCP have them, too: here they would be most of the bytes)
            put(".format_version", b"1")
            put(".storage_alignment", b"64")
            put("version", b"3\n")
            put(".data/serialization_id", b"1234")
    return out.getvalue()


def large(data):
    """The same archive, with the directory of one of more than 4 GiB."""
    end = data.rindex(b"PK\5\6")
    n, size, at = struct.unpack("<HII", data[end + 10:end + 20])
    out, d = data[:at], data[at:at + size]
    while d:
        name, extra, comment = struct.unpack("<HHH", d[28:34])
        stored, = struct.unpack("<I", d[20:24])
        header, = struct.unpack("<I", d[42:46])
        more = struct.pack("<HHQQQ", 1, 24, stored, stored, header)
        out += d[:20] + b"\xff" * 8 + struct.pack("<HHH", name, len(more), 0) + d[34:42] + b"\xff" * 4
        out += d[46:46 + name] + more
        d = d[46 + name + extra + comment:]
    size = len(out) - at
    out += b"PK\6\6" + struct.pack("<QHHIIQQQQ", 44, 45, 45, 0, 0, n, n, size, at)
    out += b"PK\6\7" + struct.pack("<IQI", 0, at + size, 1)
    return out + b"PK\5\6" + struct.pack("<HHHHIIH", 0, 0, 0xffff, 0xffff, 0xffffffff, 0xffffffff, 0)


# ---- DCP


def boxes(shape, grid):
    """The boxes of a grid of parts; as FSDP, the last ones may be smaller."""
    def cut(n, parts):
        step = -(-n // parts)
        return [(b, min(step, n - b)) for b in range(0, n, step)]
    if not shape:
        return [((), ())]
    if len(shape) == 1:
        return [((b,), (n,)) for b, n in cut(shape[0], grid[0])]
    if len(shape) == 3:
        return [((a, *b), (n, *m)) for a, n in cut(shape[0], shape[0]) for b, m in boxes(shape[1:], grid)]
    return [((a, b), (n, m)) for a, n in cut(shape[0], grid[0]) for b, m in cut(shape[1], grid[1])]


def save_dcp(folder, items, grids, ranks=4, lose=0, **stored_too):
    folder.mkdir(parents=True, exist_ok=True)
    files = [bytearray() for _ in range(ranks)]
    state, stored, turn = {}, {}, 0
    for name, x in items.items():
        if isinstance(x, Tensor):
            chunks = []
            for begin, size in boxes(x.shape, grids(name)):
                f, turn = files[turn % ranks], turn + 1
                data = save(x.box(begin, size), whole=False)
                stored[make(MetadataIndex, fqn=name, index=len(chunks), offset=Size(begin))] = make(
                    StorageInfo, relative_path=f"__{files.index(f)}_0.distcp", offset=len(f), length=len(data),
                    **stored_too)
                chunks.append(make(ChunkStorageMetadata, offsets=Size(begin), sizes=Size(size)))
                f += data
            del chunks[len(chunks) - lose:]
            state[name] = make(TensorStorageMetadata, properties=tensor_properties(x.dtype), size=Size(x.shape),
                               chunks=chunks)
        else:
            f, turn = files[turn % ranks], turn + 1
            data = save(x, whole=False)
            stored[make(MetadataIndex, fqn=name, index=None, offset=None)] = make(
                StorageInfo, relative_path=f"__{files.index(f)}_0.distcp", offset=len(f), length=len(data))
            state[name] = BytesStorageMetadata()
            f += data
    meta = make(Metadata, state_dict_metadata=state, planner_data={k: tuple(k.split(".")) for k in items},
                storage_data=stored, storage_meta=None, version="1.0.0")
    (folder / ".metadata").write_bytes(pickle.dumps(meta, protocol=4))
    for r, f in enumerate(files):
        (folder / f"__{r}_0.distcp").write_bytes(bytes(f))


# ---- safetensors


def save_safetensors(path, tensors, metadata=None):
    header, data = {"__metadata__": metadata} if metadata else {}, b""
    for name, t in tensors.items():
        b = pack(t.dtype, t.data)
        header[name] = {"dtype": {"float32": "F32", "bfloat16": "BF16"}[t.dtype], "shape": list(t.shape), "data_offsets": [len(data), len(data) + len(b)]}
        data += b
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def save_hf(folder, tensors, config):
    folder.mkdir(parents=True, exist_ok=True)
    save_safetensors(folder / "model.safetensors", tensors)
    (folder / "config.json").write_text(json.dumps(config) + "\n")


# ---- models


def numbers(*shape):
    """Different numbers, exact in 32 bits, also a quarter of them."""
    n = 1
    for d in shape:
        n *= d
    numbers.at += n
    return Tensor(shape, [(i + 1) / 1024 * (-1) ** (i % 3) for i in range(numbers.at - n, numbers.at)])


numbers.at = 0


def llama():
    m = OrderedDict()
    m["model.embed_tokens.weight"] = numbers(VOCAB, DIM)
    for i in range(LAYERS):
        p = f"model.layers.{i}."
        m[p + "self_attn.q_proj.weight"] = numbers(HEADS * WIDTH, DIM)
        m[p + "self_attn.k_proj.weight"] = numbers(KV * WIDTH, DIM)
        m[p + "self_attn.v_proj.weight"] = numbers(KV * WIDTH, DIM)
        m[p + "self_attn.o_proj.weight"] = numbers(DIM, HEADS * WIDTH)
        m[p + "mlp.gate_proj.weight"] = numbers(FFN, DIM)
        m[p + "mlp.down_proj.weight"] = numbers(DIM, FFN)
        m[p + "mlp.up_proj.weight"] = numbers(FFN, DIM)
        m[p + "input_layernorm.weight"] = numbers(DIM)
        m[p + "post_attention_layernorm.weight"] = numbers(DIM)
    m["model.norm.weight"] = numbers(DIM)
    m["lm_head.weight"] = numbers(VOCAB, DIM)
    return m


NAMES = {"self_attn.q_proj": "attention.wq", "self_attn.k_proj": "attention.wk", "self_attn.v_proj": "attention.wv",
         "self_attn.q_norm": "attention.q_norm", "self_attn.k_norm": "attention.k_norm", "self_attn.o_proj": "attention.wo", "mlp.gate_proj": "feed_forward.w1", "mlp.down_proj": "feed_forward.w2",
         "mlp.up_proj": "feed_forward.w3", "input_layernorm": "attention_norm",
         "post_attention_layernorm": "ffn_norm", "embed_tokens": "tok_embeddings", "lm_head": "output"}


def meta_rows(t):
    """Meta rotates channels 2 j and 2 j + 1 of a head, Hugging Face j and j + width / 2."""
    r, half = t.rows(), WIDTH // 2
    return of_rows([r[h * WIDTH + (j % 2) * half + j // 2] for h in range(len(r) // WIDTH) for j in range(WIDTH)])


def meta(m, pairs=True):
    out = OrderedDict()
    for name, t in m.items():
        name = name.removeprefix("model.")
        if pairs and ("q_proj" in name or "k_proj" in name):
            t = meta_rows(t)
        for theirs, ours in NAMES.items():
            name = name.replace(theirs + ".", ours + ".")
        out[name] = t
    return out


def fuse(m):
    out = OrderedDict()
    for name, t in m.items():
        if name.endswith("attention.wq.weight"):
            out[name.replace("wq", "qkv_linear.wqkv")] = of_rows(
                fuse_rows(*(m[name.replace("wq", w)].rows() for w in ("wq", "wk", "wv"))))
        elif not name.endswith(("attention.wk.weight", "attention.wv.weight")):
            out[name] = t
    return out


def fuse_rows(q, k, v):
    """[kv head][queries, key, value][width]"""
    rows, n = [], HEADS // KV
    for g in range(KV):
        rows += q[g * n * WIDTH:(g + 1) * n * WIDTH] + k[g * WIDTH:(g + 1) * WIDTH] + v[g * WIDTH:(g + 1) * WIDTH]
    return rows


def megatron(m):
    """The tensors of all layers are one, with a dimension in front."""
    def stack(rows_of):
        layers = [rows_of(f"model.layers.{i}.") for i in range(LAYERS)]
        shape = (LAYERS, len(layers[0])) + ((len(layers[0][0]),) if isinstance(layers[0][0], list) else ())
        flat = [x for rows in layers for r in rows for x in (r if isinstance(r, list) else [r])]
        return Tensor(shape, flat)
    def of(name):
        return lambda p: m[p + name].rows()
    def norm(name):
        return lambda p: list(m[p + name].data)
    d = "decoder.layers."
    head_norms = [(f"{d}self_attention.{x}_layernorm.weight", stack(norm(f"self_attn.{x}_norm.weight")))
                  for x in "qk" if f"model.layers.0.self_attn.{x}_norm.weight" in m]
    return OrderedDict(head_norms + [
        ("embedding.word_embeddings.weight", m["model.embed_tokens.weight"]),
        (d + "self_attention.linear_qkv.layer_norm_weight", stack(norm("input_layernorm.weight"))),
        (d + "self_attention.linear_qkv.weight", stack(lambda p: fuse_rows(
            *(m[f"{p}self_attn.{x}_proj.weight"].rows() for x in "qkv")))),
        (d + "self_attention.linear_proj.weight", stack(of("self_attn.o_proj.weight"))),
        (d + "pre_mlp_layernorm.weight", stack(norm("post_attention_layernorm.weight"))),
        (d + "mlp.linear_fc1.weight", stack(lambda p: m[p + "mlp.gate_proj.weight"].rows() +
                                            m[p + "mlp.up_proj.weight"].rows())),
        (d + "mlp.linear_fc2.weight", stack(of("mlp.down_proj.weight"))),
        ("decoder.final_layernorm.weight", m["model.norm.weight"]),
        ("output_layer.weight", m["lm_head.weight"])])


# ---- DeepSpeed


class ZeroStage:
    def __init__(self, stage):
        self.stage = stage

    def __reduce__(self):
        return (ZeroStage, (self.stage,))


for name in ("deepspeed", "deepspeed.runtime", "deepspeed.runtime.zero"):
    module(name)
stub("deepspeed.runtime.zero.config", "ZeroStageEnum", ZeroStage)


def flat(tensors, ranks, paddings=None, align=2):
    """One vector of them, with its end padded, in a part for each rank. Padding has numbers that show."""
    v = []
    for t, pad in zip(tensors, paddings or [0] * len(tensors)):
        v += t.data + [9e9] * pad
    lean = len(v)
    v += [9e9] * (-lean % (align * ranks))
    n = len(v) // ranks
    return [v[r * n:(r + 1) * n] for r in range(ranks)], [max(0, min(n, (r + 1) * n - lean)) for r in range(ranks)]


def cut(t, ranks):
    """The part of each rank, the last one padded."""
    n = -(-len(t.data) // ranks)
    v = t.data + [9e9] * (n * ranks - len(t.data))
    return [v[r * n:(r + 1) * n] for r in range(ranks)]


def vector(data):
    return Tensor((len(data),), data)


def states(tensors, flatten, moments):
    """[rank][kind] of a group."""
    kinds = [f([*tensors]) for f in ((lambda l: l), (lambda l: [half(t) for t in l]), (lambda l: [quarter(t) for t in l]))]
    kinds = [flatten(k) for k in kinds[:3 if moments else 1]]
    return [[k[r] for k in kinds] for r in range(len(kinds[0]))]


def moments_of(s, step):
    return {"step": step, "exp_avg": vector(s[1]), "exp_avg_sq": vector(s[2])} if len(s) > 1 else {}


def module_of(m, other=None):
    """The model's file has parameters in bf16, which nobody needs: all are one number here."""
    return OrderedDict((n, Tensor(t.shape, [1.0] * len(t.data), "bfloat16") if other is None else other)
                       for n, t in m.items())


def write_zero(folder, models, optims, prefix=""):
    folder.mkdir(parents=True, exist_ok=True)
    for name, x in models.items():
        (folder / name).write_bytes(save(x, whole=False))
    for r, x in enumerate(optims):
        (folder / f"{prefix}zero_pp_rank_{r}_mp_rank_00_optim_states.pt").write_bytes(
            save({"optimizer_state_dict": x, "ds_config": {"a": [1, None]}, "ds_version": "0.19.8"}, whole=False))


def zero12(folder, groups, ranks, stage, moments=True, padded=False, elastic=False, prefix="", module=None, **more):
    """`groups`: of named tensors."""
    optims, all_paddings = [{} for _ in range(ranks)], []
    paddings = [[-len(t.data) % 7 * padded for t in list(g.values())[:-1]] + [0] for g in groups]
    of = []
    for g, pads in zip(groups, paddings):
        ends = flat(list(g.values()), ranks, pads)[1]
        all_paddings.append(ends)
        of.append(states(list(g.values()), lambda l, p=pads: flat(l, ranks, p)[0], moments))
    for r, o in enumerate(optims):
        lean = [[x[:len(x) - e[r]] for x in g[r]] for g, e in zip(of, all_paddings)]
        o["base_optimizer_state"] = [moments_of(x, step()) for x in lean] if elastic else {
            "state": {i: moments_of(g[r], step()) for i, g in enumerate(of)} if moments else {},
            "param_groups": [{**HYPER, "params": [i]} for i in range(len(of))]}
        o["single_partition_of_fp32_groups"] = [vector(x[0]) for x in lean]
        o["zero_stage"] = ZeroStage(stage)
        o["group_paddings"] = [e[r] for e in all_paddings]
        if padded:
            o["param_alignment_paddings"] = paddings
        o["partition_count"] = [ranks] * len(groups)
    shapes = [OrderedDict((n, Size(t.shape)) for n, t in g.items()) for g in groups]
    model = {"module": module or {}, "buffer_names": [], "param_shapes": shapes, "shared_params": {},
             "ds_version": "0.19.8", **more}
    write_zero(folder, {"mp_rank_00_model_states.pt": model}, optims, prefix)


def zero3(folder, groups, ranks, moments=True, frozen=None):
    optims = [{} for _ in range(ranks)]
    of = [states(list(g.values()), lambda l: [sum(p, []) for p in zip(*(cut(t, ranks) for t in l))], moments)
          for g in groups]
    for r, o in enumerate(optims):
        o["zero_stage"], o["partition_count"] = ZeroStage(3), ranks
        o["optimizer_state_dict"] = {
            "state": {i: moments_of(g[r], 7) for i, g in enumerate(of)} if moments else {},
            "param_groups": [{**HYPER, "params": list(range(len(of)))}]}
        o["fp32_flat_groups"] = [vector(g[r][0]) for g in of]
        for x in o["fp32_flat_groups"]:
            x.attributes = {"ds_id": "0_1"}
    models = {}
    for r in range(ranks):
        models[f"zero_pp_rank_{r}_mp_rank_00_model_states.pt"] = {
            "module": module_of(groups[0], Tensor((0,), [], "bfloat16")), "buffer_names": [],
            "param_shapes": [OrderedDict((n, Size(t.shape)) for n, t in g.items()) for g in groups],
            "frozen_param_shapes": {n: Size(t.shape) for n, t in frozen.items()} if frozen else None,
            "frozen_param_fragments": {n: vector(cut(t, ranks)[r]) for n, t in frozen.items()} if frozen else None,
            "shared_params": {}, "ds_version": "0.19.8"}
    write_zero(folder, models, optims)


def split_names(m, f):
    return [OrderedDict((n, t) for n, t in m.items() if f(n, t) == i) for i in range(2)]


def save_zero(out, hf, g):
    rest, norm = split_names(hf, lambda n, t: n == "model.norm.weight")
    module = module_of(rest)
    module["model.norm.weight"] = norm["model.norm.weight"]
    module["model.layers.0.scale"] = vector([1, 2])
    zero12(out / "zero1", [rest], 2, 1, moments=False, prefix="bf16_", module=module,
           buffer_names=["model.layers.0.scale"])
    tied = OrderedDict(("lm_head.weight" if n.endswith("wte.weight") else n, t) for n, t in g.items())
    zero12(out / "zero-tied", [tied], 1, 2, moments=False, module=module_of(g),
           shared_params={"transformer.wte.weight": "lm_head.weight"})
    zero12(out / "zero2" / "global_step7", split_names(hf, lambda n, t: len(t.shape) == 1), 3, 2, padded=True)
    (out / "zero2" / "latest").write_text("global_step7")
    names = list(hf)
    zero3(out / "zero3", split_names(hf, lambda n, t: names.index(n) > 7), 3)
    zero3(out / "zero3-frozen", [rest], 2, moments=False, frozen=norm)
    zero12(out / "elastic", [hf], 3, 2, elastic=True)
    numbered = {i: {"step": step(), "exp_avg": half(t), "exp_avg_sq": quarter(t)} for i, t in enumerate(hf.values())}
    (out / "stage0").mkdir(exist_ok=True)
    (out / "stage0" / "mp_rank_00_model_states.pt").write_bytes(save({
        "module": hf, "buffer_names": [], "param_shapes": None, "ds_version": "0.19.8", "optimizer": {
            "state": numbered, "param_groups": [{**HYPER, "params": list(range(len(hf)))}]}}, whole=False))
    groups = [[t for t in hf.values() if len(t.shape) == d] for d in (2, 1)]
    n, both = len(groups[0]), groups[0] + groups[1]
    numbered = {i: {"step": step(), "exp_avg": half(t), "exp_avg_sq": quarter(t)} for i, t in enumerate(both)}
    (out / "stage0-bf16").mkdir(exist_ok=True)
    (out / "stage0-bf16" / "mp_rank_00_model_states.pt").write_bytes(save({
        "module": module_of(hf), "buffer_names": [], "param_shapes": None, "ds_version": "0.19.8", "optimizer": {
            "cur_scale": 1.0, "fp32_groups": groups, "optimizer_state_dict": {"state": numbered, "param_groups": [
                {**HYPER, "params": list(range(n))},
                {**HYPER, "weight_decay": 0.0, "params": list(range(n, len(both)))}]}}}, whole=False))


# ---- nanotron


def nanotron_tensors(hf, interleaved):
    """Name, tensor, the dimension that is cut, the rows within which it is, stage of a pipeline of two."""
    turn = meta_rows if interleaved else lambda t: t
    yield "model.token_position_embeddings.pp_block.token_embedding.weight", hf["model.embed_tokens.weight"], 0, None, 0
    for i in range(LAYERS):
        def theirs(n):
            return hf[f"model.layers.{i}.{n}.weight"]
        def joined(*parts):
            return of_rows([r for t in parts for r in t.rows()]), 0, [t.shape[0] for t in parts]
        for n, x in (("input_layernorm", (theirs("input_layernorm"), None, None)),
                     ("attn.qkv_proj", joined(turn(theirs("self_attn.q_proj")), turn(theirs("self_attn.k_proj")),
                                              theirs("self_attn.v_proj"))),
                     ("attn.o_proj", (theirs("self_attn.o_proj"), 1, None)),
                     ("post_attention_layernorm", (theirs("post_attention_layernorm"), None, None)),
                     ("mlp.gate_up_proj", joined(theirs("mlp.gate_proj"), theirs("mlp.up_proj"))),
                     ("mlp.down_proj", (theirs("mlp.down_proj"), 1, None))):
            yield f"model.decoder.{i}.pp_block.{n}.weight", *x, i * 2 // LAYERS
    yield "model.final_layer_norm.pp_block.weight", hf["model.norm.weight"], None, None, 1
    if "lm_head.weight" in hf:
        yield "model.lm_head.pp_block.weight", hf["lm_head.weight"], 0, None, 1


def nanotron_part(t, dim, chunks, rank, tp):
    """The part of a rank, and its slices as text."""
    if dim is None:
        return t, None
    def text(box):
        return "|".join("None,None,None" if s is None else f"{s[0]},{s[1]},None" for s in box)
    def slices(own, whole):
        return text([own if i == dim else None for i in range(2)]) + "#" + text(
            [whole if i == dim else None for i in range(2)])
    n = t.shape[dim] // tp
    if not chunks:
        begin, size = [0, 0], list(t.shape)
        begin[dim], size[dim] = rank * n, n
        return t.box(begin, tuple(size)), slices(None, (rank * n, (rank + 1) * n))
    rows, pairs, at, own = [], [], 0, 0
    for c in chunks:
        first, n = at + rank * (c // tp), c // tp
        rows += t.rows()[first:first + n]
        pairs.append(slices((own, own + n), (first, first + n)))
        at, own = at + c, own + n
    return of_rows(rows), ";".join(pairs)


def save_nanotron(folder, hf, tp=1, pp=1, dp=0, interleaved=False, rounded=False, optimizer=True, states=None,
                  spoiled=None):
    """states: parameter, first and second moment from a tensor and its weight decay, and the step. spoiled: a folder
    for the files of ranks other than rank 0, of which one number is another."""
    folder.mkdir(exist_ok=True)
    ranks = {}
    states = states or (lambda t, _: (t, half(t), quarter(t)), 7.0)
    for name, t, dim, chunks, stage in nanotron_tensors(hf, interleaved):
        stage = stage if pp == 2 else 0
        for r in range(tp):
            part, slices = nanotron_part(t, dim, chunks, r, tp)
            ranks.setdefault((stage, r), OrderedDict())[name] = part
            if spoiled and "token_embedding" in name:
                ranks.setdefault((1, r), OrderedDict())[name] = part
            *path, last = name.split(".")
            where = folder.joinpath("model", *path)
            where.mkdir(parents=True, exist_ok=True)
            shape = f"(np.int64({t.shape[0]}), {t.shape[1]})" if chunks else str(t.shape)
            meta = slices and {"version": "1.5", "local_global_slices_pairs": slices, "unsharded_shape": shape}
            end = f"_pp-rank-{stage}-of-{pp}_tp-rank-{r}-of-{tp}" if slices else ""
            stored = part if rounded else states[0](part, 0.05 if len(t.shape) == 2 else 0.0)[0]
            stored = Tensor(part.shape, [1.0] * len(part.data), "bfloat16") if rounded else stored
            save_safetensors(where / f"model_{last}{end}.safetensors", {"data": stored}, meta)
    (folder / "checkpoint_metadata.json").write_text('{"version": "1.5", "tp": %d, "dp": %d}\n' % (tp, dp or 1))
    config = {k: v for k, v in CONFIG.items() if k != "model_type"}
    (folder / "model_config.json").write_text(json.dumps({
        **config, "is_llama_config": True, "rope_interleaved": interleaved, "rope_scaling": None,
        "vocab_size": hf["model.embed_tokens.weight"].shape[0],
        "tie_word_embeddings": "lm_head.weight" not in hf, "_attn_implementation": "flash_attention_2",
        "z_loss_enabled": False}) + "\n")
    if not optimizer:
        return
    (folder / "optimizer").mkdir(exist_ok=True)
    for (stage, r), tensors in ranks.items():
        for d in range(dp or 1):
            state, names, groups, masters = {}, {}, [], {}
            for name, t in tensors.items():
                n = len(t.data)
                begin, end = (d * n // dp, (d + 1) * n // dp) if dp else (0, n)
                if begin == end:
                    continue
                own = vector(t.data[begin:end]) if dp else t
                i = len(names)
                decay = 0.05 if len(t.shape) == 2 else 0.0
                masters[name], m, v = states[0](own, decay)
                state[i], names[i] = {"step": Tensor((), [states[1]]), "exp_avg": m, "exp_avg_sq": v}, name
                groups.append({**HYPER, "weight_decay": decay, "params": [i]})
            saved = {"state": state, "param_groups": groups, "names": names}
            if rounded or spoiled:
                saved["gradient_accumulator"] = masters
            of = f"pp-{stage}-of-{pp}_" + (f"dp-{d}-of-{dp}_" if dp else "") + f"tp-{r}-of-{tp}_exp-0-of-1"
            (folder / "optimizer" / f"optimizer_{of}.pt").write_bytes(save(saved, whole=False))
            for what, rank, name, of_state in (("norm", (0, 1), "input_layernorm", "exp_avg"),
                                               ("table", (1, 0), "token_embedding", "exp_avg_sq"),
                                               ("masters", (1, 1), "final_layer_norm", None)):
                if not spoiled or (stage, r) != rank:
                    continue
                i = next(i for i, n in names.items() if name in n)
                t = state[i][of_state] if of_state else masters[names[i]]
                spoiled.mkdir(exist_ok=True)
                t.data[3] += 0.5
                (spoiled / f"{folder.name}-{what}.pt").write_bytes(save(saved, whole=False))
                t.data[3] -= 0.5


def save_bins(folder, hf):
    folder.mkdir(exist_ok=True)
    names, where = list(hf), {}
    for i, part in enumerate((names[:9], names[9:])):
        file = f"pytorch_model-0000{i + 1}-of-00002.bin"
        x = OrderedDict((n, hf[n]) for n in part)
        n = "model.layers.1.mlp.up_proj.weight"
        if n in x:
            x[n] = Tensor(hf[n].shape, [], share=transpose(hf[n]))
            x[n].stride = (1, FFN)
        (folder / file).write_bytes(save(x, whole=False))
        where.update({n: file for n in part})
    (folder / "pytorch_model.bin.index.json").write_text(
        json.dumps({"metadata": {"total_size": 1}, "weight_map": where}) + "\n")


class Namespace:
    pass


def adamw_step(t, decay):
    """A tensor and its moments before step 2 of AdamW, and after it."""
    (beta1, beta2), lr, eps = HYPER["betas"], HYPER["lr"], HYPER["eps"]
    m, v = t.map(lambda x: (1 - beta1) * (x + 0.01)), t.map(lambda x: (1 - beta2) * (x + 0.01) ** 2)
    m1 = t.map(lambda x: beta1 * (1 - beta1) * (x + 0.01) + (1 - beta1) * (x / 2 + 0.03))
    v1 = t.map(lambda x: beta2 * (1 - beta2) * (x + 0.01) ** 2 + (1 - beta2) * (x / 2 + 0.03) ** 2)
    updates = [a / (1 - beta1 ** 2) / (math.sqrt(b / (1 - beta2 ** 2)) + eps) for a, b in zip(m1.data, v1.data)]
    p1 = Tensor(t.shape, [x * (1 - lr * decay) - lr * u for x, u in zip(t.data, updates)])
    return (t, m, v), (p1, m1, v1)


def half(t):
    return t.map(lambda x: x / 2)


def quarter(t):
    return t.map(lambda x: abs(x) / 4)


def step():
    return Tensor((), [7.0])


HYPER = {"lr": 5e-4, "betas": (0.9, 0.95), "eps": 1e-9, "weight_decay": 0.05, "amsgrad": False, "fused": None}
CONFIG = {"model_type": "llama", "hidden_act": "silu", "num_hidden_layers": LAYERS, "num_attention_heads": HEADS,
          "num_key_value_heads": KV, "hidden_size": DIM, "intermediate_size": FFN,
          "max_position_embeddings": CONTEXT, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "vocab_size": VOCAB,
          "tie_word_embeddings": False}


def gpt2():
    m = OrderedDict()
    m["transformer.wte.weight"] = numbers(VOCAB, DIM)
    m["transformer.wpe.weight"] = numbers(CONTEXT, DIM)
    p = "transformer.h.0."
    for name, rows, columns in (("ln_1", DIM, 0), ("attn.c_attn", 3 * DIM, DIM), ("attn.c_proj", DIM, DIM),
                                ("ln_2", DIM, 0), ("mlp.c_fc", 4 * DIM, DIM), ("mlp.c_proj", DIM, 4 * DIM)):
        m[p + name + ".weight"] = numbers(rows, columns) if columns else numbers(rows)
        m[p + name + ".bias"] = numbers(rows)
    m["transformer.ln_f.weight"] = numbers(DIM)
    m["transformer.ln_f.bias"] = numbers(DIM)
    return m


def transpose(t):
    return of_rows(list(zip(*t.rows())))


def main():
    out = Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parent / "torch")
    hf = llama()
    save_hf(out / "hf", hf, CONFIG)
    titan = meta(hf)

    names = list(titan)
    numbered = {i: {"step": step(), "exp_avg": half(titan[n]), "exp_avg_sq": quarter(titan[n])}
                for i, n in enumerate(names)}
    model = OrderedDict((f"_orig_mod.{n}", t) for n, t in titan.items())
    model["_orig_mod.freqs_cis"] = Tensor((4, 2), range(8))
    (out / "ddp.pt").write_bytes(save({
        "step": 3, "model": model, "danger": System(), "rng": Tensor((8,), range(8), "uint8"),
        "optimizer": {"state": numbered, "param_groups": [{**HYPER, "params": list(range(len(names)))}]}}, "ddp"))

    items = OrderedDict((re.sub(r"attention\.(w[qkv])\.", r"attention.qkv_linear.\1.", n.replace("output.", "lm_head.")), t)
                        for n, t in titan.items())
    for n, t in fuse(titan).items():
        n = n.replace("output.", "lm_head.")
        items[f"optimizer.state.{n}.step"] = step()
        items[f"optimizer.state.{n}.exp_avg"] = half(t)
        items[f"optimizer.state.{n}.exp_avg_sq"] = quarter(t)
    for k, v in HYPER.items():
        items[f"optimizer.param_groups.norm.weight.{k}"] = v
    items["train_state.step"] = Tensor((), [6], "int32")
    save_dcp(out / "titan", items, lambda n: (1, 2) if n.endswith("exp_avg_sq") else (2, 1) if n.endswith("exp_avg") else (3, 2))

    items = OrderedDict(("model." + n, t) for n, t in hf.items())
    for n, t in hf.items():
        items[f"optimizer.state.{n}.step"] = step()
        items[f"optimizer.state.{n}.exp_avg"] = Tensor(t.shape, half(t).data, "float64")
        items[f"optimizer.state.{n}.exp_avg_sq"] = quarter(t)
    items["model.model.norm.weight"] = Tensor((DIM,), [float(i) for i in range(DIM)], "bfloat16")
    items["model.model.layers.0.input_layernorm.weight"] = Tensor((DIM,), [1 + i / 8 for i in range(DIM)], "float16")
    items["optimizer.param_groups.0.betas"] = (0.8, 0.99)
    items["optimizer.param_groups.0.params"] = [n for n, t in hf.items() if len(t.shape) == 2]
    items["optimizer.param_groups.0.weight_decay"] = 0.1
    items["optimizer.param_groups.1.params"] = [n for n, t in hf.items() if len(t.shape) == 1]
    items["optimizer.param_groups.1.weight_decay"] = 0.0
    save_dcp(out / "nested", items, lambda n: (1, 1) if n.startswith("optimizer") else (2, 1), ranks=2)

    items = OrderedDict((f"optimizer.state.{n}.{state}", x) for n, t in hf.items()
                        for state, x in (("step", step()), ("exp_avg", half(t)), ("exp_avg_sq", quarter(t))))
    items["optimizer.param_groups.0.weight_decay"] = 0.05
    items["optimizer.param_groups.0.params"] = list(hf)
    save_dcp(out / "fsdp" / "optimizer_0", items, lambda n: (1, 1), ranks=1)
    items = OrderedDict(("model." + n, t) for n, t in hf.items())
    save_dcp(out / "fsdp" / "pytorch_model_fsdp_0", items, lambda n: (2, 1) if "lm_head" in n else (1, 1), ranks=2)

    for n, t in hf.items():
        folder = out / "universal" / "zero" / n
        folder.mkdir(parents=True, exist_ok=True)
        for state, x in (("fp32", {"param": t}), ("exp_avg", {"param": half(t), "cat_dim": 0}),
                         ("exp_avg_sq", {"param": quarter(t)}), ("step", 7)):
            (folder / f"{state}.pt").write_bytes(save(x, whole=False))

    for folder, stage in ((out / "universal", 2), (out / "refused" / "universal3", 3)):
        (folder / "zero").mkdir(parents=True, exist_ok=True)
        (folder / "zero" / "optimizer_state.pt").write_bytes(save(
            {"zero_stage": ZeroStage(stage), "param_groups": [{**HYPER, "params": [0]}]}, whole=False))
    table = out / "refused" / "universal3" / "zero" / "model.embed_tokens.weight"
    table.mkdir(exist_ok=True)
    (table / "fp32.pt").write_bytes(save(vector([1, 2]), whole=False))
    g = gpt2()
    save_zero(out, hf, g)
    save_bins(out / "bins", hf)
    even = OrderedDict(hf)  # (the vocabulary is a multiple of tp)
    for n in ("model.embed_tokens.weight", "lm_head.weight"):
        even[n] = of_rows(hf[n].rows() + [[0.0] * DIM])
    save_hf(out / "hf-even", even, {**CONFIG, "vocab_size": VOCAB + 1})
    save_nanotron(out / "nanotron", even, tp=2, pp=2, rounded=True)
    save_nanotron(out / "nanotron-zero", even, tp=2, dp=3, interleaved=True)
    tied = OrderedDict((n, t) for n, t in hf.items() if n != "lm_head.weight")
    save_nanotron(out / "nanotron-tied", tied, optimizer=False)
    even.pop("lm_head.weight")
    (out / "nanotron-step").mkdir(exist_ok=True)
    for i, name in enumerate(("before", "after")):
        save_nanotron(out / "nanotron-step" / name, even, tp=2, pp=2, spoiled=out / "nanotron-step" / "spoiled",
                      states=(lambda t, decay, i=i: adamw_step(t, decay)[i], i + 1.0))
    (out / "shards").mkdir(exist_ok=True)
    for rank in range(2):
        parts, where = {}, {}
        for n, t in hf.items():
            cut = boxes(t.shape, (1, 2) if "o_proj" in n else (2, 1))
            if rank < len(cut):
                parts[n] = t.box(*cut[rank])
                where[n] = {"saved_offsets": list(cut[rank][0])}
        save_safetensors(out / "shards" / f"shard-0000{rank + 1}-model-00001-of-00001.safetensors", parts,
                         {"DCP_SHARDING_INFO": json.dumps(where), "DCP_VERSION": "1.0", "format": "pt"})

    items = OrderedDict()
    for n, t in megatron(hf).items():
        items[n] = Tensor(t.shape, [float(int(x)) for x in t.data], "bfloat16")
        items[f"optimizer.state.fp32_param.{n}"] = t
        items[f"optimizer.state.exp_avg.{n}"] = half(t)
        items[f"optimizer.state.exp_avg_sq.{n}"] = quarter(t)
    args = make(stub("argparse", "Namespace", Namespace), num_attention_heads=HEADS, seq_length=CONTEXT,
                norm_epsilon=1e-5, rotary_base=10000)
    items["common_state/shard_0_1"] = [
        {"optimizer": {"param_groups": [{**HYPER, "step": 7}]}, "iteration": 9, "args": args}]
    items["rng_state/shard_0_1"] = [[{"seed": 2 ** 70}]]
    save_dcp(out / "megatron", items, lambda n: (2, 1) if n.startswith("optimizer.state.fp32") else (1, 2), ranks=2)
    (out / "megatron" / "metadata.json").write_text(
        '{"sharded_backend": "torch_dist", "sharded_backend_version": 1}')

    bin_ = OrderedDict(hf)
    both = Tensor((2 * DIM,), hf["model.norm.weight"].data + hf["model.layers.0.input_layernorm.weight"].data)
    for n, at in (("model.norm.weight", 0), ("model.layers.0.input_layernorm.weight", DIM)):
        bin_[n] = Tensor((DIM,), [], share=both)
        bin_[n].offset = at
    n = "model.layers.1.mlp.up_proj.weight"
    bin_[n] = Tensor(hf[n].shape, [], share=transpose(hf[n]))
    bin_[n].stride = (1, FFN)
    (out / "pytorch_model.bin").write_bytes(save(bin_, "pytorch_model"))
    (out / "zip64.pt").write_bytes(large(save(Tensor((2, 3), range(6), "int64"))))

    qwen = OrderedDict()
    for n, t in hf.items():
        qwen[n] = t
        if "v_proj" in n:
            for x in "qk":
                qwen[n.replace("v_proj", f"{x}_norm")] = numbers(WIDTH)
    save_hf(out / "qwen3", qwen, {**CONFIG, "model_type": "qwen3", "head_dim": WIDTH})
    (out / "qwen3.pt").write_bytes(save({"model": meta(qwen, pairs=False)}, "qwen3"))
    save_dcp(out / "qwen3-megatron", megatron(qwen), lambda n: (2, 1), ranks=1)

    bad = out / "refused"
    bad.mkdir(exist_ok=True)
    small = Tensor((2, 3), range(6))
    (bad / "compressed.pt").write_bytes(save(small, method=zipfile.ZIP_DEFLATED))
    (bad / "order.pt").write_bytes(save(small, order=b"big"))
    save_dcp(bad / "transformed", {"x": small}, lambda n: (1, 1), ranks=1, transform_descriptors=["zstd"])
    save_dcp(bad / "hole", {"tok_embeddings.weight": small}, lambda n: (2, 1), ranks=1, lose=1)
    (bad / "stage0-fused").mkdir(exist_ok=True)
    (bad / "stage0-fused" / "mp_rank_00_model_states.pt").write_bytes(save({
        "module": {"model.embed_tokens.weight": small}, "param_shapes": None, "optimizer": {
            "optimizer_state_dict": {"state": {0: {"exp_avg": small}}}, "fp32_groups_flat": [small]}}))
    save_dcp(bad / "buffers", {n: small for n in (
        "embedding.word_embeddings.weight", "optimizer.distributed.dp_group_idx_0.gbuf_idx_0.bucket_idx_0.exp_avg")},
        lambda n: (1, 1), ranks=1)

    save_hf(out / "gpt2", {n: transpose(t) if ".attn.c" in n and len(t.shape) == 2 or ".mlp.c" in n and
                           len(t.shape) == 2 else t for n, t in g.items()},
            {"model_type": "gpt2", "n_layer": 1, "n_head": HEADS, "n_embd": DIM, "n_positions": CONTEXT,
             "vocab_size": VOCAB, "layer_norm_epsilon": 1e-5, "activation_function": "gelu"})
    order = [n for n in g if len(g[n].shape) == 2] + [n for n in g if len(g[n].shape) == 1]
    numbered = {i: {"step": step(), "exp_avg": half(g[n]), "exp_avg_sq": quarter(g[n])} for i, n in enumerate(order)}
    model = OrderedDict((f"_orig_mod.{n}", t) for n, t in g.items())
    model["_orig_mod.transformer.h.0.attn.bias"] = Tensor((1, 1, 2, 2), range(4))
    tied = Tensor((VOCAB, DIM), [], share=g["transformer.wte.weight"])
    model["_orig_mod.lm_head.weight"] = tied
    n = sum(len(g[n].shape) == 2 for n in g)
    (out / "nanogpt.pt").write_bytes(save({
        "model": model, "iter_num": 7, "config": {"dataset": "x"},
        "model_args": {"n_layer": 1, "n_head": HEADS, "n_embd": DIM, "block_size": CONTEXT, "bias": True,
                       "vocab_size": VOCAB, "dropout": 0.0},
        "optimizer": {"state": numbered, "param_groups": [{**HYPER, "params": list(range(n))},
                                                          {**HYPER, "weight_decay": 0.0,
                                                           "params": list(range(n, len(g)))}]}}))


main()
