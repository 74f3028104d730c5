# Text to tokens: parts scattered over the CPU partition, then gathered into one manifest.
rule shard_part:
    input:
        corpus=rules.corpus.output.manifest,
    output:
        part=f"{RESULTS}/shards/parts/{{part}}.json",
    log:
        f"{RESULTS}/logs/shards-{{part}}.log",
    resources:
        slurm_partition=RUN.shards.partition,
        cpus_per_task=RUN.shards.cpus,
        mem_mb=RUN.shards.memory_mb,
        runtime=RUN.shards.minutes,
    params:
        config=CHAIN.run_file,
        key=CHAIN.shards_key,
    shell:
        "steelrail shards part --config {params.config:q} --part {wildcards.part} --log {log:q}"


rule shards:
    input:
        corpus=rules.corpus.output.manifest,
        parts=expand(rules.shard_part.output.part, part=CHAIN.parts),
    output:
        manifest=f"{RESULTS}/shards/manifest.json",
    log:
        f"{RESULTS}/logs/shards.log",
    localrule: True
    params:
        config=CHAIN.run_file,
        key=CHAIN.shards_key,
    shell:
        "steelrail shards gather --config {params.config:q} --log {log:q}"
