# Where did each dollar go?
rule cost:
    localrule: True
    input:
        record=rules.train.output.record,
        shards=rules.shards.output.manifest,
        fabric=rules.fabric.output.report,
    output:
        summary=f"{RESULTS}/cost/summary.json",
        ledger=f"{RESULTS}/cost/ledger.parquet",
        report=f"{RESULTS}/cost/report.html",
    params:
        config=CHAIN.run_file,
        key=CHAIN.cost_key,
    log:
        f"{RESULTS}/logs/cost.log",
    shell:
        "steelrail cost --config {params.config:q} --log {log:q}"
