"""A checkpoint in nanotron's format: one file of a tensor and a tensor-parallel rank, one of the optimizer of each
rank. All ranks save what their optimizer has, also of tensors that are not split."""
import json
import struct

import torch

# Our tensors, nanotron's module, the dimension that is split
OUTSIDE = [(["tok_embeddings"], "token_position_embeddings.pp_block.token_embedding", 0),
           (["norm"], "final_layer_norm.pp_block", None), (["output"], "lm_head.pp_block", 0)]
LAYER = [(["attention_norm"], "input_layernorm", None),
         (["attention.wq", "attention.wk", "attention.wv"], "attn.qkv_proj", 0),
         (["attention.wo"], "attn.o_proj", 1), (["ffn_norm"], "post_attention_layernorm", None),
         (["feed_forward.w1", "feed_forward.w3"], "mlp.gate_up_proj", 0),
         (["feed_forward.w2"], "mlp.down_proj", 1)]


def modules(layers):
    yield from OUTSIDE
    for i in range(layers):
        for ours, theirs, dim in LAYER:
            yield [f"layers.{i}.{n}" for n in ours], f"decoder.{i}.pp_block.{theirs}", dim


def slices(parts, dim, rank, tp):
    """Rows, or columns, of this rank's tensor, and which ones of the whole tensor they are."""
    def text(begin, end, n_dims=2):
        return "|".join(f"{begin},{end},None" if i == dim else "None,None,None" for i in range(n_dims))
    pairs, here, there = [], 0, 0
    for x in parts:
        n = x.shape[dim]
        pairs.append(text(here, here + n) + "#" + text(there + rank * n, there + (rank + 1) * n))
        here, there = here + n, there + tp * n
    shape = [s * tp if i == dim else s for i, s in enumerate(torch.cat(parts).shape)]
    return {"local_global_slices_pairs": ";".join(pairs), "unsharded_shape": str(tuple(shape))}


def save_safetensors(path, x, meta):
    header = json.dumps({"__metadata__": {"version": "1.5", **meta}, "data": {
        "dtype": "F32", "shape": list(x.shape), "data_offsets": [0, 4 * x.numel()]}}).encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(struct.pack("<Q", len(header)) + header + x.contiguous().numpy().tobytes())


def save(folder, rank, tp, values, states, group):
    """values, states: of each of our names this rank's tensor; its exp_avg, exp_avg_sq and step, or {}."""
    layers = 1 + max(int(n.split(".")[1]) for n in values if n.startswith("layers."))
    saved = {"state": {}, "names": {}, "param_groups": []}
    for ours, theirs, dim in modules(layers):
        ours = [n + ".weight" for n in ours]
        parts = [values[n] for n in ours]
        *path, last = f"model.{theirs}.weight".split(".")
        end = "" if dim is None else f"_pp-rank-0-of-1_tp-rank-{rank}-of-{tp}"
        if dim is not None or not rank:
            save_safetensors(folder.joinpath("model", *path) / f"model_{last}{end}.safetensors",
                             torch.cat(parts), {} if dim is None else slices(parts, dim, rank, tp))
        number = len(saved["names"])
        saved["names"][number] = f"model.{theirs}.weight"
        saved["param_groups"].append({**group, "params": [number]})
        if states[ours[0]]:
            saved["state"][number] = {"step": states[ours[0]]["step"]} | {
                k: torch.cat([states[n][k] for n in ours]) for k in ("exp_avg", "exp_avg_sq")}
    (folder / "optimizer").mkdir(parents=True, exist_ok=True)
    torch.save(saved, folder / "optimizer" / f"optimizer_pp-0-of-1_tp-{rank}-of-{tp}_exp-0-of-1.pt")
    if not rank:
        (folder / "checkpoint_metadata.json").write_text('{"version": "1.5", "tp": %d, "dp": 1}\n' % tp)
