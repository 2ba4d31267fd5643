// Lists of the fleet, read again when the event stream of the fleet says that something has changed.
import { follow } from "./api.js";
import { may } from "./permissions.js";
import { signal } from "./ui.js";

const CALM = 700; // ms between two readings

export class FleetState {
  changed = signal(0);
  #timer = null;
  #stop = !may("list_runs") ? () => {} : follow(["events"], { receive: () => this.#receive(), reconnected: () => this.#receive() });

  #receive() {
    this.#timer ??= setTimeout(() => { this.#timer = null; this.changed.value += 1; }, CALM);
  }

  close() {
    clearTimeout(this.#timer);
    this.#stop();
  }
}
