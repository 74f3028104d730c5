# The model. The driver submits, or attaches to the job that is there; it owns restarts, so Snakemake never retries it.
rule train:
    input:
        shards=rules.shards.output.manifest,
        # Admission to train, not part of what is trained: a newer receipt repeats nothing. A path of its own: `ancient`
        # marks the string that it is given, and the bill shares the rule's.
        fabric=ancient(f"{RESULTS}/fabric/report.json"),
    output:
        record=f"{RESULTS}/train/record.json",
    log:
        f"{RESULTS}/logs/train.log",
    retries: 0
    localrule: True
    params:
        config=CHAIN.run_file,
        key=CHAIN.train_key,
    shell:
        "steelrail train --config {params.config:q} --log {log:q}"
