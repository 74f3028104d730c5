# What exactly is the input? Objects, sizes, digests, row groups.
rule corpus:
    localrule: True
    output:
        manifest=f"{RESULTS}/corpus/manifest.json",
    params:
        config=CHAIN.run_file,
        key=CHAIN.corpus_key,
        listing=CHAIN.listing,
    log:
        f"{RESULTS}/logs/corpus.log",
    shell:
        "steelrail corpus --config {params.config:q} --listing {params.listing:q} --log {log:q}"
