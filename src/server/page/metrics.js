// What the page reads of /metrics: values by name, and how fast counters grow.

// Prometheus' text format to name -> sum over the label sets. Of histograms the `_sum` and `_count` are kept.
export function parseMetrics(text) {
  const values = new Map();
  const labelled = new Map(); // name{labels} -> value
  for (const line of text.split("\n")) {
    if (!/^(stoker|process)_/.test(line)) continue;
    const end = line.lastIndexOf(" ");
    const [sample, value] = [line.slice(0, end), Number(line.slice(end + 1))];
    const brace = sample.indexOf("{");
    const name = brace < 0 ? sample : sample.slice(0, brace);
    if (name.endsWith("_bucket")) continue;
    values.set(name, (values.get(name) ?? 0) + value);
    labelled.set(sample, value);
  }
  return { values, labelled };
}

export function engineState({ labelled }) {
  for (const [sample, value] of labelled) {
    if (sample.startsWith("stoker_engine_state{") && value === 1) return /state="([^"]*)"/.exec(sample)[1];
  }
  return "unknown";
}

// Of a metric with a sample for each engine; at least 1.
function numSamples({ labelled }, name) {
  return [...labelled.keys()].filter((sample) => sample.startsWith(`${name}{`)).length || 1;
}

// One point of the plots, from two readings. at: seconds. Rates are null for the first, and after a restart.
export function pointOf(now, before) {
  const known = (name) => now.values.get(name) ?? null; // null: the server does not export it
  const value = (name) => known(`stoker_${name}`) ?? 0;
  const grownOf = (name) => {
    if (!before) return null;
    const grown = (known(name) ?? 0) - (before.values.get(name) ?? 0);
    return grown < 0 ? null : grown;
  };
  const growth = (name) => grownOf(`stoker_${name}`);
  const perSecond = (grown) => (grown === null ? null : grown / Math.max(0.001, now.at - before.at));
  const rate = (name) => perSecond(growth(name));
  // Without a first value there is no growth: it would be that since the start of the process.
  const cpu = (name) => (known(name) === null || !before?.values.has(name) ? null : perSecond(grownOf(name)));
  const gpuMemory = known("stoker_gpu_memory_used_bytes");
  const mean = (name) => {
    const count = growth(`${name}_count`);
    return count ? growth(`${name}_sum`) / count : null;
  };
  const queries = growth("prefix_cache_queries_total");
  return {
    at: now.at,
    running: value("num_requests_running"),
    waiting: value("num_requests_waiting"),
    kv: value("kv_cache_usage_ratio") / numSamples(now, "stoker_kv_cache_usage_ratio"),
    generated: rate("generation_tokens_total"),
    prompt: rate("prompt_tokens_total"),
    hits: queries ? growth("prefix_cache_hits_total") / queries : null,
    first: mean("time_to_first_token_seconds"),
    between: mean("inter_token_latency_seconds"),
    engineCpu: cpu("stoker_engine_process_cpu_seconds_total"),
    serverCpu: cpu("process_cpu_seconds_total"),
    engineMemory: known("stoker_engine_process_resident_memory_bytes"),
    serverMemory: known("process_resident_memory_bytes"),
    gpu: gpuMemory === null ? null : value("gpu_utilization_ratio") / numSamples(now, "stoker_gpu_utilization_ratio"),
    gpuMemory: gpuMemory === null ? null : gpuMemory / known("stoker_gpu_memory_total_bytes"),
  };
}
