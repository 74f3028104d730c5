# Where did each dollar go?
rule cost:
    input:
        record=rules.train.output.record,
        shards=rules.shards.output.manifest,
        fabric=rules.fabric.output.report,
    output:
        summary=f"{RESULTS}/cost/summary.json",
        ledger=f"{RESULTS}/cost/ledger.parquet",
        report=f"{RESULTS}/cost/report.html",
    log:
        f"{RESULTS}/logs/cost.log",
    localrule: True
    params:
        config=CHAIN.run_file,
        key=CHAIN.cost_key,
    shell:
        "steelrail cost --config {params.config:q} --log {log:q}"
