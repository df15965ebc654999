"""Writes a tokenizer whose tokens are bytes: it encodes and decodes every text exactly. Needs ``tokenizers`` and ``transformers``."""

from __future__ import annotations

import sys

from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
tokenizer = Tokenizer(models.BPE(vocab={letter: number for number, letter in enumerate(alphabet)}, merges=[]))
tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
tokenizer.decoder = decoders.ByteLevel()
PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_max_length=1 << 20).save_pretrained(sys.argv[1])
