"""Mistakes of the user, and words of the one line that each command says about them.

The exit code of each is 2, and nothing is written.
"""

TEXT = "--config.data.directory=text"
NEW = f"--workdir=new --config=toy {TEXT}"
OWN = f"{NEW} --config.data.tokenizer=own.model"
FOREIGN = "--workdir=foreign", "damaged or not the tokeniser of this run"
TORN = "corpus is damaged: train/source.tokens does not have its checksum"
EDITED = "--workdir=edited", "edited/config.json cannot be read, is damaged or was ed"
NOT_THERE = "new is not a writable folder"
SPAN = "--source=one --output=new"  # of --mode=translate_corpus

# Of data.corpora, each in a list.
CORPORA = {
    '{"weight":2}': "corpus 1 of data.corpora has the name None",
    '{"name":"a"},{"name":"a"}': "corpus 2 of data.corpora is called a",
    '{"name":"mean"}': "is called mean",
    '{"name":"a","wieght":2}': "unknown key 'wieght'; did you mean weight?",
    '{"name":"a","weight":-1}': "has the weight -1; use a number from 0",
    '{"name":"a","weight":0}': "all weights of data.corpora are 0",
    '{"name":"a","weight":true}': "has the weight True",
    '{"name":"a","weight":[[0,1],[0,2]]}': "two weights at one update",
    '{"name":"a","weight":[[5,1]]}': "no weight at update 0; add [0, 1.0]",
    '{"name":"a","weight":[[0,1],[3]]}': "use a number from 0 to 1000, or",
    '{"name":"a","train":3}': "data.train is 3; it must be text",
    "3": "data.corpora is [3]; it must be a list of dicts",
}
# Files of --mode=score, after a line of --mode=translate --json.
FOUND = {
    "empty.jsonl": ("{}", "line 2 is no line of --mode=translate --json"),
    "none.jsonl": ('{"hypotheses": []}', "has no hypothesis"),
    "text.jsonl": ('{"hypotheses": [{"text": "SU"}]}', "line 2 is no line"),
    "number.jsonl": (
        '{"hypotheses": [{"source_pieces": 1, "pieces": 1}]}', "line 2 is no line",
    ),
    "piece.jsonl": (
        '{"hypotheses": [{"source_pieces": [], "pieces": ["X"]}]}', "X ... are not",
    ),
}  # fmt: skip
CONFIGS = {
    "syntax.py": ("def get_config(:\n", "SyntaxError"),
    "key.py": ("def get_config():\n    return {}['a']\n", "fails: KeyError: 'a'"),
    "dict.py": ("def get_config():\n    return {}\n", "to_dict"),
    "lacks.py": ("def config():\n    pass\n", "has no get_config; write one"),
    "exits.py": ("raise SystemExit(0)\n", "fails: SystemExit: 0"),
    "list.py": ("class get_config:\n    to_dict = list\n", "list.py fails: "),
    "section.py": (
        "from ml_collections import ConfigDict\n\ndef get_config():\n"
        "    return ConfigDict({'model': 'base'})\n", "config section model is a str",
    ),
}  # fmt: skip

# For each command: flags, which follow --workdir=run, and words of the message.
MISTAKES = {
    "train": [
        ("--workdir= --config=demo", "--workdir is missing; for example: jaxformer"),
        ("--wrkdir=x", "there is no flag --wrkdir; did you mean --workdir?"),
        ("--mode=trian", "--mode=trian is none of the commands: train, "),
        ("--peer_timeout=9", "--peer_timeout is 9; it must be at least 10"),
        ("--config.training.steps", "--config.training.steps=VALUE"),
        ("--config=gone.py", "no config file gone.py; there are convs2s, demo, "),
        ("--config=dmo", "no config file dmo; did you mean demo?"),
        ("--config=elsewhere/demo.py", "no config file elsewhere/demo.py"),
        ("--config=demo:big", "demo has no rows; leave out :big"),
        ("--config=table3:F", "Table 3 has no row 'F'"),
        *((f"--config={name}", said) for name, (_, said) in CONFIGS.items()),
        ("--config=section.py --help", "config section model is a str"),
        ("--config.model.d_modle=3", "no key model.d_modle; did you mean model.d_mo"),
        ("--config.model=3", "no key model"),
        ("--config.model.d_model=1.5", "model.d_model=1.5 is not a whole number"),
        ("--config.model.norm_first=yes", "norm_first=yes is not True or False"),
        ("--config.model.d_ff=32", "model.d_ff=64, and this config says 32"),
        ("--config.training.steps=90", "a run of 100 steps, and the config asks"),
        ("--config.mesh.data=3", "mesh.data=3, mesh.fsdp=1, mesh.tensor=1 does not"),
        ("--workdir=new", "there is no run in new"),
        ("--workdir=short --config=toy", "short: File exists; use another path"),
        (f"{NEW} --config.batches.row_length=800", "tokens_per_mic"),
        (f"{NEW} --config.model.positions=learned --config.model.max_positions=20",
         "model.max_positions=20 does not hold a row of 32 tokens"),
        (f"{NEW} --config.data.shared_vocabulary=False", "set model.tied_embeddings="),
        ("--workdir=given --config=demo --config.data.shared_vocabulary=False "
         "--config.model.tied_embeddings=none", "the tokeniser has one vocabulary of"),
        (f"{NEW} --config.model.encoder_projected_keys=9", "batches.layout=buckets"),
        (f"{NEW} --config.training.best_by=lang/bleu", "use one of bleu, chrf, nll"),
        EDITED,
        ("--workdir=torn", TORN),
        ("--config.data.directory=elsewhere", "elsewhere cannot be compared"),
        ("--workdir=new --config=demo --config.data.builtin_eval_pairs=0",
         "the dev split is empty; raise data.builtin_eval_pairs"),
        ("--workdir=given --config=demo --config.data.vocab_size=10",
         "given/tokenizer.model cannot be used: it has 11 ids, more than data.vocab"),
        ("--workdir=new --init_from=run --config.model.d_ff=48",
         "model.d_ff=64, and this config says 48"),
        ("--workdir=new --init_from=run --config.training.freeze=enc", "names 'enc'"),
        ("--workdir=new --init_from=elsewhere", "there is no run in elsewhere"),
        ("--init_from=other", "training.init_from="),
    ],
    "prepare": [
        ("--workdir=gcs://bucket/x", "use s3:// or gs://"),
        ("--workdir=S3://bucket/x", "use s3:// or gs://"),
        *((f"{NEW} --config.data.corpora=[{corpora}]", said)
          for corpora, said in CORPORA.items()),
        (f"{NEW} --config.data.subword_sampling=0", "is 0.0; it must be above 0"),
        (f"{OWN} --config.data.vocab_size=6", "set data.vocab_size=11"),
        (f"{OWN} --config.data.tag=>>de<<", "the tokeniser has no piece '>>de<<'"),
        (f"{OWN},gone --config.data.shared_vocabulary=False "
         "--config.model.tied_embeddings=target", "gone cannot be read"),
        (f"{OWN} --workdir=given --config.data.tokenizer=run/tokenizer.model",
         "given/tokenizer.model is another tokeniser than run/tokenizer.model"),
        (f"{OWN} --workdir=given --config.data.tokenizer=gone", "gone cannot be read"),
    ],
    "check": [
        ("--workdir=", "nothing to check: give --config=..."),
        ("--output=new/page.html", NOT_THERE),
        (f'--workdir= --config=toy {TEXT} '
         '--config.data.corpora=[{"name":"a","weight":1e-7}]',
         "has no pair from update 0 on; raise a weight"),
        ("--topology=v5e:3x3", "there is no topology 'v5e:3x3'"),
        ("--topology=h100 --mesh=auto", "estimates none; leave it out"),
        ("--mesh=auto", "--mesh is for a check with --topology"),
        ("--before=old.json", "--before is for a check with --topology"),
        ("--topology=v5e:2x2 --memory_gib=4", "leave it out with --topology"),
        ("--topology=v5e:2x2 --before=missing.json", "missing.json is not the"),
        ("--topology=v5e:2x2 --mesh=data", "--mesh"),
        ("--workdir= --config=toy --topology=v5e:2x2 "
         "--config.training.tokens_per_microbatch=9", "does not hold 8 row(s) of 32"),
    ],
    "translate": [
        ("a.txt", "'a.txt' is no flag"),
        ("--beam_size=w", "=w is not a whole"),
        ("--beam_size=0", "--beam_size is 0; it"),
        ("--alpha=x", "--alpha=x is not a number"),
        ("--checkpoint", "--checkpoint"),
        ("--workdir=run/config.json", "run/config.json/config.json cannot be read"),
        ("--workdir=untrained", "there is no checkpoint in untrained"),
        ("--ensemble=run,foreign", FOREIGN[1]),
        FOREIGN,
        ("--ensemble=french", "french translates en-fr and not en-de"),
        ("--prefix=nowhere", "nowhere"),
        ("--prefix=short", "short has 2 lines and standard input has 3"),
        ("--prefix=many", "many has 51 lines and standard input has 3"),
        ("--phrases=short", "short has 2 lines and standard input has 3"),
        ("--phrases=odd", "line 2: the phrase '\u4f60' has a character that the voc"),
        ("--phrases=odd --temperature=1", "samples have no phrases; leave out the te"),
        ("--max_source_length=2 --long_lines=refuse", "line 1 has 4 pieces"),
        ("--rerank=french", "french translates en-fr and cannot rerank"),
        ("--rerank=other,other", "twice, or it is the workdir; give each"),
        ("--rerank=run", "twice, or it is the workdir; give each"),
        ("--rerank=new", "there is no run in new"),
        ("--rerank=other --beam_size=1", "hypotheses; set beam_size above 1"),
        ("--rerank=other --rerank_weights=1,2", "has 1.0, 2.0 for 1 models of"),
        ("--rerank_weights=1", "rerank_weights is for rerank; give both"),
        ("--rerank=other --rerank_weights=nan", "give a finite weight"),
        ("--rerank=other --rerank_weights=x", "--rerank_weights=x is not a number"),
        ("--rerank=other --minimum_bayes_risk=chrf --temperature=1",
         "use either rerank or minimum_bayes_risk"),
        ("--minimum_bayes_risk=chrf", "chooses among samples; set a temperature"),
        ("--temperature=1 --minimum_bayes_risk=comet", "--comet=FILE"),
        ("--temperature=1 --comet=one", "is for minimum_bayes_risk=comet; give both"),
        ("--comet_python=python", "comet_python=python is for"),
    ],
    "translate_corpus": [
        ("--output=new", "--source is missing; give the text and a new folder"),
        ("--source=one", "--output is missing; give the text and a new folder"),
        ("--source=gone --output=new", "gone cannot be read: No such file"),
        ("--source=empty --output=new", "empty is empty"),
        ("--source=binary --output=new", "binary, line 2: byte 1 of the line is not"),
        ("--source=cut.gz --output=new", "the .gz data is damaged or cut short"),
        ("--source=pipe --output=new", "--source pipe is no file"),
        ("--source=one --output=one", "one exists already and holds no corpus"),
        ("--source=one --output=run", "run exists already and holds no corpus"),
        (f"{SPAN} --corpus=x", "has no corpus x"),
        (f"{SPAN} --least_log_probability=1", "must be at most 0"),
        (f"{SPAN} --workdir=martian", "no language 'xx'; leave out that rule"),
        (f"{SPAN} --workdir=english", "translates en-en, and the files are named by"),
    ],
    "evaluate": [
        ("--source=short", "--source and --reference go together"),
        ("--source=one --reference=short", "one has 1 lines and short has 2;"),
        ("--source=empty --reference=one", "empty is empty"),
        ("--source=binary --reference=short", "binary, line 2: byte 1"),
        ("--split=tset", "'tset'"),
        ("--output=new/text", NOT_THERE),
        ("--output=new.gz", "--output=new.gz would be plain text; choose another"),
        ("--source=one --reference=one --output=./one", "is a file of the text to sc"),
        (f"{TEXT} --output=text/test.de", "is a file of the text to score"),
        ("--comet_python=python", "comet_python=python is for"),
        ("--split=dev --workdir=torn", TORN),
    ],
    "score": [
        ("--checkpoint=7", "checkpoints/7; there are steps 50, 75, 100"),
        *((f"--checkpoint={word}", f"{word} is none of: a step, latest, best, averag")
          for word in ("last", "average:", "average:0", "average:x", "-1", "²")),
        ("--checkpoint=" + "9" * 5000, "9 is none of: a step, latest, best, averag"),
        ("--workdir=unscored --checkpoint=best", "score yet; use the checkpoint"),
        ("--config.training.best_by=blue", "'blue'; use one of bleu"),
        *((f"--reference={name}", said) for name, (_, said) in FOUND.items()),
        ("--reference=text.jsonl --source=one", "its sources; leave out --source"),
        ("--reference=text.jsonl --tag=>>de<<", "leave out --source and --tag"),
    ],
    "align": [
        ("--output=short", "--output=short exists"),
        ("--output=new/page.npz", NOT_THERE),
    ],
    "visualize": [
        ("--layer=2", "no layer 2: choose from 1 to 1"),
        ("--heads=1,b", "--heads=1,b is no list"),
        ("--source=blank", "0 sentences cannot be shown"),
        ("--source=many", "51 sentences cannot be shown: give 1 to 50"),
        ("--source=long", "more than 32"),
        ("--source=one --reference=long", "the translation of line 1 has"),
        ("--source=short --output=new.svg", "shows one sentence"),
        ("--output=page.gif", "does not end in .html"),
        ("--output=new/page.html", NOT_THERE),
    ],
    "report": [
        ("--compare=other,other", "given twice"),
        ("--compare=new", "there is no run in new"),
        ("--compare=other", "other and run translate different texts"),
        ("--output=run", "does not end in .html"),
        ("--output=new/page.html", NOT_THERE),
        ("--output=run/config.html", "run/config.json is where the report's data wou"),
    ],
    "reproduce": [
        ("--row=tabel3/A_h1", "did you mean table3/A_h1?"),
        ("--row=table3/E --config=demo", "stands for --config=table3:E already"),
        ("--row=table3/E --workdir=", "--workdir is missing; give the folder to train"),
        ("--workdir=new", "there is no folder new"),
        ("--workdir=spoilt", "spoilt/reproduced.json cannot be read"),
        ("--workdir=other", "other/reproduced.json cannot be read (InputError"),
        ("--output=page.txt", "does not end in .html"),
        ("--output=new/page.html", NOT_THERE),
        ("--output=page.html --row=table3/E", "leave out --row or --output"),
        *((f"--workdir= {flag}", "is for one row; add --row=NAME")
          for flag in ("--steps=3", "--beam_size=2", "--checkpoint=7")),
    ],
    "export": [
        ("", "give --format=ctranslate2"),
        ("--format=huggingface --output=new --source_length=8", "is for --format=sta"),
        ("--format=stablehlo", "--output is missing; give the new folder"),
        ("--format=huggingface --output=new --quantization=int8", "int8 is not for"),
        ("--format=huggingface --output=run", "run exists already; choose a new"),
        ("--format=huggingface --output=s3://bucket/x", "write to a folder"),
        ("--format=huggingface --output=new --workdir=other", "reproduced.json cannot"),
        ("--format=stablehlo --output=new --license=mit", "--license=mit is for the"),
    ],
    "import": [
        ("--workdir=new --config=toy", "--input is missing"),
        ("--workdir=new --input=run", "--config is missing"),
    ],
    "serve": [
        ("--host=192.0.2.1", "cannot listen on host 192.0.2.1, port 8000"),
        ("--max_request_pieces=9 --max_queue=17", "9 exceeds half of --max_queue=17"),
        ("--request_timeout=nan", "--request_timeout is nan; it m"),
        ("--request_timeout=0", "is 0.0; it must be above 0 and at"),
        *((f"--host_names={name}", f"--host_names has '{name}'; write names as")
          for name in ("[", "[::1", "de.example/", "De.example", "de.example:80")),
    ],
}  # fmt: skip
