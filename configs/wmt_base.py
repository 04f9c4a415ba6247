"""The paper's base model on WMT 2014 English-German (Table 2).

Reproduces  27.3 BLEU on newstest2014 by the paper's own script, which is about 25.8 to
            26.6 in sacreBLEU 13a; 100,000 updates of about 25,000 + 25,000 tokens.
Hardware    the paper: 8 P100, 12 hours. On one H100, where an update of 24,576 + 24,576
            positions takes 38.6 ms, 64 minutes (arithmetic, not a run).
Data        TensorFlow Datasets `wmt14_translate/de-en`, 4.5M pairs.

    jaxformer train --config=configs/wmt_base.py runs/wmt_base
"""

from ml_collections import ConfigDict, config_dict


def get_config() -> ConfigDict:
    """Every key and its value; the other configs start from this one."""
    config = ConfigDict()
    config.data = ConfigDict(
        {
            "corpus": "tfds:wmt14_translate/de-en",
            "source_language": "en",
            "target_language": "de",
            "directory": "",  # of TensorFlow Datasets: its own
            "train": "train",
            "dev": "validation",
            "test": "test",
            "columns": (),
            "tokenizer": "",
            "model_type": "bpe",
            "subword_sampling": config_dict.placeholder(float),
            "versions": config_dict.placeholder(int),
            "noise": {
                "copy": 0.0,
                "upper_case": 0.0,
                "title_case": 0.0,
                "no_stop": 0.0,
                "typo": 0.0,
            },
            "byte_fallback": False,
            "user_defined_symbols": (),
            "shared_vocabulary": True,
            "vocab_size": 37000,  # section 5.1
            "vocab_sentences": 10_000_000,
            "character_coverage": 0.9999,
            "max_length": 256,
            "max_ratio": 4.0,
            "deduplicate": True,
            "drop": config_dict.placeholder(tuple),
            "max_foreign": 0.5,
            "seed": 0,
            "tag": "",
            "target_tag": "",
            "corpora": (),
            "temperature": config_dict.placeholder(float),
        }
    )
    config.batches = ConfigDict(
        {
            "layout": "packed",
            "row_length": 256,
            "max_shapes": 12,
            "row_multiple": 8,  # of rows, which so many devices then share evenly
            "executor": "tf.data",
        }
    )
    config.model = ConfigDict(
        {
            "architecture": "transformer",
            "encoder_layers": 6,
            "decoder_layers": 6,
            "d_model": 512,
            "d_ff": 2048,
            "num_heads": 8,
            "d_k": 64,
            "d_v": 64,
            "dropout": 0.1,
            "positions": "sinusoidal",
            "first_input": "bos",
            "decoder_self_attention": "attention",
            "max_positions": 1024,
            "norm_first": False,
            "dtype": "bfloat16",
            "attention_window": config_dict.placeholder(int),  # all positions
            "encoder_projected_keys": config_dict.placeholder(int),
            "encoder_global_positions": config_dict.placeholder(int),
            "fused_attention": True,  # cuDNN's kernel on GPUs, where it fits
            "biases": "none",
            "tied_embeddings": "all",
            "activation": "relu",
            "layer_norm_epsilon": 1e-6,  # of tensor2tensor
        }
    )
    config.optimizer = ConfigDict(
        {
            "algorithm": "adam",
            "schedule": "inverse_sqrt",  # equation 3
            "peak_learning_rate": config_dict.placeholder(float),
            "warmup_steps": 4000,
            "weight_decay": 0.0,
            "beta1": 0.9,
            "beta2": 0.98,
            "epsilon": 1e-9,
            "clip_norm": config_dict.placeholder(float),
        }
    )
    config.training = ConfigDict(
        {
            "steps": 100_000,
            "seed": 0,
            "tokens_per_update": 25_000,
            "tokens_per_microbatch": 25_000,
            "rematerialise": False,  # True: less memory for a third more work
            "label_smoothing": 0.1,
            "init_from": "",
            "initial_embeddings": "",
            "freeze": (),
            "on_divergence": "stop",
            "ema_decay": config_dict.placeholder(float),
            "log_every": 100,
            "eval_every": 6000,
            # Section 6.1: 10 minutes apart, which are 1,500 updates of 0.4 s.
            "best_by": "bleu",
            "patience": config_dict.placeholder(int),
            "save_every": 1500,
            "keep": 5,
            "average": 5,
            "trackers": (),
        }
    )
    config.mesh = ConfigDict({"data": -1, "fsdp": 1, "tensor": 1})
    config.decoding = ConfigDict(
        {"beam_size": 4, "alpha": 0.6, "extra_length": 50, "batch_tokens": 4096}
    )
    return config
