# What the configuration says otherwise where all hosts are this machine on its loopback address (lib/loopback.sh).
s/^(SlurmctldHost|DbdHost)=head/\1=localhost/
# It binds to what the machine's own name leads to: another address than ours, or none.
/^CommunicationParameters=/d
/^NodeName=node[2-5] /d
s/NodeAddr=@NET@\.([0-9])/NodeAddr=127.0.0.1 NodeHostname=localhost Port=882\1/
# Eight ranks on one host.
s/^(NodeName=node1 .*)CPUs=4/\1CPUs=8/
s/node\[1-[45]\]/node1/
s/node5,cpu1/cpu1/
