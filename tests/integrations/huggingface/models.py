"""Tiny models of Transformers, built from their configurations, and data for them."""

from pathlib import Path
from typing import Any

import torch
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    TrainingArguments,
)

TOKENS = {"vocab_size": 24, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
SIZES = {"hidden_size": 8, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}


def bert(seed: int = 0, **options: Any) -> Any:
    torch.manual_seed(seed)
    config = BertConfig(vocab_size=24, num_labels=3, max_position_embeddings=16, **SIZES, **options)
    return BertForSequenceClassification(config)


def llama(seed: int = 0) -> Any:
    torch.manual_seed(seed)
    return LlamaForCausalLM(LlamaConfig(**TOKENS, **SIZES, num_key_value_heads=1, max_position_embeddings=16))


def gpt2(seed: int = 0) -> Any:
    """A model with tied embeddings."""
    torch.manual_seed(seed)
    return GPT2LMHeadModel(GPT2Config(**TOKENS, n_embd=8, n_layer=1, n_head=2, n_positions=16))


def sentences(count: int = 12) -> list[dict[str, Any]]:
    """Sentences whose class is that of their first token. The text is a column that no model takes."""
    source = torch.Generator().manual_seed(7)
    ids = torch.randint(3, 24, (count, 5), generator=source)
    return [
        {"input_ids": row.tolist(), "attention_mask": [1] * 5, "labels": int(row[0]) % 3, "text": f"sentence {number}"}
        for number, row in enumerate(ids)
    ]


def texts(count: int = 12) -> list[dict[str, Any]]:
    """Texts of five tokens, of which a language model predicts four."""
    return [{"input_ids": row["input_ids"], "labels": row["input_ids"]} for row in sentences(count)]


def arguments(folder: Path, **options: Any) -> Any:
    usual: dict[str, Any] = {"num_train_epochs": 2, "per_device_train_batch_size": 4, "learning_rate": 0.01}
    usual |= {"save_strategy": "no", "logging_strategy": "no", "report_to": "none", "disable_tqdm": True}
    return TrainingArguments(output_dir=str(folder), use_cpu=True, dataloader_pin_memory=False, **(usual | options))
