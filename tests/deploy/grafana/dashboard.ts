// A dashboard as Grafana's published types have it, with the options of the four kinds of panels that we use.
import type * as raw from "@grafana/schema/dist/esm/raw/dashboard/x/Dashboard_types.gen";
import type * as stat from "@grafana/schema/dist/esm/raw/composable/stat/panelcfg/x/StatPanelCfg_types.gen";
import type * as lines from "@grafana/schema/dist/esm/raw/composable/timeseries/panelcfg/x/TimeSeriesPanelCfg_types.gen";
import type * as heatmap from "@grafana/schema/dist/esm/raw/composable/heatmap/panelcfg/x/HeatmapPanelCfg_types.gen";
import type * as table from "@grafana/schema/dist/esm/raw/composable/table/panelcfg/x/TablePanelCfg_types.gen";

// Grafana publishes no types for Prometheus' queries; these are the fields of its query editor.
interface Query {
  datasource: raw.DataSourceRef;
  expr: string;
  refId: string;
  legendFormat?: string;
  format?: "time_series" | "table" | "heatmap";
  instant?: boolean;
  range?: boolean;
  exemplar?: boolean;
}

interface Panel<Type, Options, Custom> extends Omit<raw.Panel, "type" | "options" | "fieldConfig" | "targets"> {
  type: Type;
  title: string;
  description: string;
  options?: Partial<Options>;
  fieldConfig?: { defaults: Omit<raw.FieldConfig, "custom"> & { custom?: Partial<Custom> }; overrides: raw.FieldConfigSource["overrides"] };
  targets: Query[];
}

type AnyPanel =
  | Panel<"stat", stat.Options, Record<string, never>>
  | Panel<"timeseries", lines.Options, lines.FieldConfig>
  | Panel<"heatmap", heatmap.Options, heatmap.FieldConfig>
  | Panel<"table", table.Options, table.FieldConfig>;

interface Row extends Omit<raw.RowPanel, "panels"> {
  panels: AnyPanel[];
}

// The field of Prometheus' annotations, which Grafana's SDK has and these types do not.
interface Annotation extends raw.AnnotationQuery {
  expr: string;
}

export interface CheckedDashboard extends Omit<raw.Dashboard, "panels" | "annotations"> {
  annotations: { list: Annotation[] };
  panels: Array<Row | AnyPanel>;
}
