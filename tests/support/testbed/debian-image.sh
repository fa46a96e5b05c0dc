#!/usr/bin/env bash
# Makes the base image of a Debian release where no registry answers, as root: with debootstrap, from the
# mirror that this machine's apt uses. It takes over this machine's own certificate authorities and apt's
# settings for the way to the mirror, so that apt works in its containers.
#   debian-image.sh debian:trixie-slim trixie
set -euo pipefail
image=$1 release=$2
mirror=http://deb.debian.org/debian security=
. /etc/os-release
if [ "$ID" = debian ] && [ -n "${VERSION_CODENAME:-}" ]; then
  archive() {
    # shellcheck disable=SC2016 # apt replaces these
    apt-get indextargets --format '$(RELEASE) $(COMPONENT) $(REPO_URI)' 'Created-By: Packages' |
      sed -n "s|^$1 main \(.*[^/]\)/*$|\1|p" | sed -n 1p
  }
  found=$(archive "$VERSION_CODENAME")
  mirror=${found:-$mirror} security=$(archive "$VERSION_CODENAME-security")
fi

folder=$(mktemp -d)
root=$folder/root
# A broken debootstrap leaves something mounted there: it is not removed with the folder.
trap 'rm -rf --one-file-system "$folder"' EXIT
debootstrap --variant=minbase --include=ca-certificates --force-check-gpg \
  --keyring=/usr/share/keyrings/debian-archive-keyring.gpg "$release" "$root" "$mirror"
{
  echo "deb $mirror $release main"
  echo "deb $mirror $release-updates main"
  [ -z "$security" ] || echo "deb $security $release-security main"
} > "$root/etc/apt/sources.list"
apt-config dump | sed -nE '/^Acquire::(Check-Valid-Until|Check-Date|ForceIPv[46]|Retries|https?(::.*)?) .+;$/p' \
  > "$root/etc/apt/apt.conf.d/90mirror"
find /usr/local/share/ca-certificates -name '*.crt' -exec cp {} "$root/usr/local/share/ca-certificates" \;
chroot "$root" update-ca-certificates
tar -cf - --one-file-system --exclude './var/cache/apt/*' --exclude './var/lib/apt/lists/*' -C "$root" . |
  docker import --change 'CMD ["bash"]' - "$image"
