"""What a running command needs: run directory, signals, connections and the hospitals that came."""
