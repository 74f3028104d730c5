# shellcheck shell=bash
# The S3 server: SeaweedFS on the head's address only, one key, one bucket.

S3_PORT=8333
S3_URL=http://$HEAD:$S3_PORT
S3_PORTS=() # of its other parts; none given: SeaweedFS's own
# SeaweedFS has no option for these, and leaves them behind when it is killed.
WEED_SOCKETS=(/tmp/seaweedfs-{master-grpc-19333,volume-grpc-18080,filer-grpc-18888,s3-grpc-18333}.sock)
S3_BUCKET=steelrail
CREDENTIALS=$DEV_HOME/.aws/credentials

make_s3_keys() { # once per cluster; server and user must agree, so both files are made from one pair
  if [ ! -s "$DIR/s3/key" ]; then (umask 077; echo "$(random_hex 10) $(random_hex 20)" >"$DIR/s3/key"); fi
  local access secret; read -r access secret <"$DIR/s3/key"
  (
    umask 077
    printf '{"identities":[{"name":"steelrail","credentials":[{"accessKey":"%s","secretKey":"%s"}],"actions":["Admin","Read","Write","List","Tagging"]}]}\n' \
      "$access" "$secret" >"$DIR/s3/identities.json"
    printf '[default]\naws_access_key_id = %s\naws_secret_access_key = %s\n' "$access" "$secret" >"$DIR/s3/credentials"
  )
  cmp -s "$DIR/s3/credentials" "$CREDENTIALS" ||
    install -m 0600 -o "$DEV_USER" -g "$DEV_USER" "$DIR/s3/credentials" "$CREDENTIALS"
}

s3_answers() { curl --silent --max-time 2 --output /dev/null "$S3_URL/"; }

launch_s3() {
  alive weed && return 0
  mkdir -p "$DIR/s3/data"
  spawn weed env -C "$DIR/s3" "$PROJECT/.venv/bin/weed" -logdir="$DIR/log/weed" server -dir="$DIR/s3/data" \
    -ip="$HEAD" -ip.bind="$HEAD" -master.telemetry=false -master.volumeSizeLimitMB=256 -master.electionTimeout=1s \
    -volume.max=200 -volume.preStopSeconds=0 -volume.minFreeSpace=1 \
    -filer -filer.localSocket="$DIR/run/filer.sock" \
    -s3 -s3.port="$S3_PORT" -s3.config="$DIR/s3/identities.json" -s3.port.iceberg=0 -s3.port.lance=0 \
    -s3.localSocket="$DIR/run/s3.sock" "${S3_PORTS[@]}"
}

# Bucket creation by the user proves the credentials; the first PUTs of a young server may fail until it has volumes.
make_bucket() {
  as_user env -C / AWS_EC2_METADATA_DISABLED=true python3 - "$S3_URL" "$S3_BUCKET" <<'PYTHON'
import sys, time
import boto3, botocore
url, bucket = sys.argv[1:]
s3 = boto3.client("s3", endpoint_url=url, region_name="us-east-1")
for attempt in range(60):
    try:
        if bucket not in [b["Name"] for b in s3.list_buckets()["Buckets"]]:
            s3.create_bucket(Bucket=bucket)
        s3.put_object(Bucket=bucket, Key=".probe", Body=b"x")
        s3.delete_object(Bucket=bucket, Key=".probe")
        break
    except botocore.exceptions.BotoCoreError as error:
        last = error
    except botocore.exceptions.ClientError as error:
        last = error
    time.sleep(0.5)
else:
    sys.exit(f"cluster: the S3 server must take a PUT within 30 s, does not: {last}")
PYTHON
}

start_s3() {
  make_s3_keys
  launch_s3
  wait_for 40 s3_answers || { log_tail weed.out; die 1 "the S3 server must answer at $S3_URL, does not: see $DIR/log/weed.out"; }
  if [ ! -e "$DIR/s3/ready.$(pid_of weed)" ]; then
    make_bucket
    rm -f "$DIR"/s3/ready.*; touch "$DIR/s3/ready.$(pid_of weed)"
  fi
}

signal_s3() {
  local pid; pid=$(pid_of weed) || die 1 "the S3 server must run, does not: slurm/dev/cluster.sh s3 start"
  kill "-$1" "$pid"
}

kill_s3() { signal_s3 KILL; wait_for 5 not_running weed; rm -f "$DIR/run/weed.pid" "${WEED_SOCKETS[@]}"; }

s3_command() {
  case ${1:-} in
    start) start_s3 ;;
    stop) if alive weed; then rm -f "${WEED_SOCKETS[@]}"; fi; stop weed ;;
    kill) kill_s3 ;;
    pause) signal_s3 STOP ;;
    resume) signal_s3 CONT ;;
    *) die 2 "s3 must be followed by start, stop, kill, pause or resume, is '${1:-}'" ;;
  esac
}
