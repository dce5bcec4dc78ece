#!/bin/sh
# Makes a certificate authority, and with it certificates for one coordinator
# and for workers, by the openssl command.
#
#     sh deploy/make_certificates.sh FOLDER WORKER...
#
# WORKER is the name or IP address by which the coordinator reaches a worker.
# FOLDER gets ca.crt and ca.key, coordinator.crt and coordinator.key, and
# WORKER.crt and WORKER.key. Run again with other workers, it adds theirs.
#
# To a worker's machine go ca.crt, WORKER.crt and WORKER.key, and nothing else.
# With ca.key anybody can be anybody: keep it offline.
set -eu

if [ $# -lt 1 ]; then
  echo 'usage: make_certificates.sh FOLDER WORKER...' >&2
  exit 2
fi
days=365
folder=$1
shift
umask 077
mkdir -p "$folder"
cd "$folder"

key() {
  openssl genpkey -quiet -algorithm EC -pkeyopt ec_paramgen_curve:P-256 \
    -out "$1" 2>/dev/null ||
    openssl genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256 -out "$1"
}

# NAME USAGE [SUBJECT_ALTERNATIVE_NAME]
certificate() {
  key "$1.key"
  {
    echo 'basicConstraints=critical,CA:FALSE'
    echo 'keyUsage=critical,digitalSignature'
    # A worker's certificate does not open other workers.
    echo "extendedKeyUsage=$2"
    [ -z "${3-}" ] || echo "subjectAltName=$3"
  } > "$1.ext"
  openssl req -new -key "$1.key" -subj "/CN=$1" -out "$1.csr"
  openssl x509 -req -in "$1.csr" -CA ca.crt -CAkey ca.key -CAcreateserial \
    -days "$days" -extfile "$1.ext" -out "$1.crt" 2>/dev/null
  rm "$1.csr" "$1.ext"
}

if [ ! -e ca.key ]; then
  key ca.key
  openssl req -x509 -new -key ca.key -subj '/CN=pda_fed workers' \
    -days "$days" -out ca.crt \
    -addext 'keyUsage=critical,keyCertSign,cRLSign'
  certificate coordinator clientAuth
fi
for worker in "$@"; do
  case $worker in
    ca | coordinator)
      echo "make_certificates.sh: $worker must be the name of a worker" >&2
      exit 2
      ;;
    *:*) names="IP:$worker" ;;
    *[!0-9.]*) names="DNS:$worker" ;;
    *) names="IP:$worker" ;;
  esac
  certificate "$worker" serverAuth "$names"
done
