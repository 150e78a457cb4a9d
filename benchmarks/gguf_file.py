"""A model's weights as a GGUF file, which llama.cpp and OpenVINO read: a Llama in bf16, f16 or Q8_0.

Files are kept in the user's cache folder, a model and type each; matrices have that type, norms are float32.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Literal

import gguf
import numpy as np
from gguf.quants import quantize
from safetensors import safe_open

from astune.config.cache import cache_dir

WeightType = Literal["BF16", "F16", "Q8_0"]


def gguf_file(folder: Path, weights: WeightType) -> Path:
    """The file of the Hugging Face `folder` of a Llama model, written where it is not there yet."""
    safetensors = folder / "model.safetensors"
    state = safetensors.stat()
    key = hashlib.sha256(f"{folder.resolve()} {state.st_size} {state.st_mtime_ns}".encode()).hexdigest()[:16]
    file = cache_dir() / "gguf" / f"{key}-{weights}.gguf"
    if not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True)
        half = file.with_suffix(".half")
        _write(half, folder, weights)
        half.rename(file)
    return file


def rope_pairs(weight: np.ndarray, heads: int) -> np.ndarray:
    """Rows of a query or key projection in the order of GGUF: a rotated pair beside each other.

    The two halves of each head become its even and odd rows: with one head of four rows, 0 1 2 3 becomes 0 2 1 3.
    """
    halves = weight.reshape(heads, 2, weight.shape[0] // heads // 2, *weight.shape[1:])
    return halves.swapaxes(1, 2).reshape(weight.shape)


def _write(file: Path, folder: Path, weights: WeightType) -> None:
    config = json.loads((folder / "config.json").read_text())
    if config["model_type"] != "llama":
        raise SystemExit(f"{folder} is a {config['model_type']}; the peers are compared with a Llama")
    writer = gguf.GGUFWriter(file, "llama")
    _add_sizes(writer, config, weights)
    _add_vocabulary(writer, folder, config)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config["num_hidden_layers"])
    heads = {"q_proj.weight": config["num_attention_heads"], "k_proj.weight": config["num_key_value_heads"]}
    with safe_open(folder / "model.safetensors", framework="pt") as tensors:
        for name in tensors.keys():  # noqa: SIM118 -- it is no dict
            values = tensors.get_tensor(name).float().numpy()
            for projection, count in heads.items():
                if name.endswith(projection):
                    values = rope_pairs(values, count)
            target = names.get_name(name, try_suffixes=(".weight",))
            if target is None:
                raise SystemExit(f"GGUF has no name for the tensor {name}")
            kind = gguf.GGMLQuantizationType[weights if values.ndim == 2 else "F32"]
            writer.add_tensor(target, quantize(values, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add_sizes(writer: gguf.GGUFWriter, config: dict, weights: WeightType) -> None:
    writer.add_name("model")
    writer.add_file_type(gguf.LlamaFileType[f"MOSTLY_{weights}"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_rope_dimension_count(config["head_dim"])
    writer.add_rope_freq_base(config["rope_parameters"]["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_vocab_size(config["vocab_size"])


def _add_vocabulary(writer: gguf.GGUFWriter, folder: Path, config: dict) -> None:
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    tokens = {index: token for token, index in tokenizer["model"]["vocab"].items()}
    control = {entry["id"]: entry["content"] for entry in tokenizer["added_tokens"]}
    tokens |= control
    kinds = [gguf.TokenType.CONTROL if index in control else gguf.TokenType.NORMAL for index in range(len(tokens))]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list([tokens[index] for index in range(len(tokens))])
    writer.add_token_types(kinds)
    writer.add_token_merges(
        [merge if isinstance(merge, str) else " ".join(merge) for merge in tokenizer["model"]["merges"]]
    )
    writer.add_bos_token_id(config["bos_token_id"])
    writer.add_eos_token_id(config["eos_token_id"])
