# Are these nodes fit, and how are they linked? A receipt, not an ingredient of the model.
rule fabric:
    localrule: True
    output:
        report=f"{RESULTS}/fabric/report.json",
    params:
        config=CHAIN.run_file,
        key=CHAIN.fabric_key,
    log:
        f"{RESULTS}/logs/fabric.log",
    shell:
        "steelrail fabric --config {params.config:q} --log {log:q}"
