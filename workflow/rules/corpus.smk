# What exactly is the input? Objects, sizes, digests, row groups.
rule corpus:
    output:
        manifest=f"{RESULTS}/corpus/manifest.json",
    log:
        f"{RESULTS}/logs/corpus.log",
    localrule: True
    params:
        config=CHAIN.run_file,
        key=CHAIN.corpus_key,
        listing=CHAIN.listing,
    shell:
        "steelrail corpus --config {params.config:q} --listing {params.listing:q} --log {log:q}"
