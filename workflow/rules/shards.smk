# Text to tokens: parts scattered over the CPU partition, then gathered into one manifest.
rule shard_part:
    input:
        corpus=rules.corpus.output.manifest,
    output:
        part=f"{RESULTS}/shards/parts/{{part}}.json",
    params:
        config=CHAIN.run_file,
        key=CHAIN.shards_key,
    log:
        f"{RESULTS}/logs/shards-{{part}}.log",
    resources:
        slurm_partition=RUN.shards.partition,
        cpus_per_task=RUN.shards.cpus,
        mem_mb=RUN.shards.memory_mb,
        runtime=RUN.shards.minutes,
    shell:
        "steelrail shards part --config {params.config:q} --part {wildcards.part} --log {log:q}"


rule shards:
    localrule: True
    input:
        corpus=rules.corpus.output.manifest,
        parts=expand(rules.shard_part.output.part, part=CHAIN.parts),
    output:
        manifest=f"{RESULTS}/shards/manifest.json",
    params:
        config=CHAIN.run_file,
        key=CHAIN.shards_key,
    log:
        f"{RESULTS}/logs/shards.log",
    shell:
        "steelrail shards gather --config {params.config:q} --log {log:q}"
