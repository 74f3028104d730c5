# Are these nodes fit, and how are they linked? A receipt, not an ingredient of the model.
rule fabric:
    output:
        report=f"{RESULTS}/fabric/report.json",
    log:
        f"{RESULTS}/logs/fabric.log",
    localrule: True
    params:
        config=CHAIN.run_file,
        key=CHAIN.fabric_key,
    shell:
        "steelrail fabric --config {params.config:q} --log {log:q}"
