# The model. The driver submits, or attaches to the job that is there; it owns restarts, so Snakemake never retries it.
rule train:
    input:
        shards=rules.shards.output.manifest,
        # Admission to train, not part of what is trained: a newer receipt repeats nothing.
        fabric=ancient(rules.fabric.output.report),
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
