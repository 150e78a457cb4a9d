/** The curves of the run on show, with other runs laid over it. Grows while the run goes on. */

import { useEffect, useMemo, useState } from 'preact/hooks'

import { Empty, Failure, Loading } from '../common/Notice'
import { Select } from '../common/Select'
import { Tabs } from '../common/Tabs'
import type { Metric, Run, RunInfo, RunMetrics } from '../data/types'
import { go, usePlace, type Axis } from '../state/place'
import { differing } from '../runs/columns'
import { useLater } from '../state/later'
import { dark, language } from '../state/preferences'
import type { Resource } from '../state/resource'
import { useSource } from '../state/source'
import { useStore } from '../state/store'
import { duration, integer, number } from '../text/format'
import { t } from '../text/translate'
import type { Word } from '../text/words'
import { Chart, Swatch, UNITS } from './Chart'
import { curves, isMeant, others, overview, usesRun, type ChartKind } from './charts'
import { colourOf } from './palette'
import { groupsBy, means, OVER_SEEDS, smoothed, SMOOTHINGS, type RunGroup } from './together'

/** Charts that are made at once; a window seldom has more of them in sight. */
const FIRST = 6

interface Props {
  metrics: Resource<RunMetrics[]>
  /** Asks for all metrics. */
  onWhole: () => void
  run: Run | null
  runs: RunInfo[]
  catalogue: Metric[]
}

export function Dashboard({ metrics, onWhole, run, runs, catalogue }: Props) {
  const { axis, from, to, metric, smooth, group } = usePlace()
  const spoken = useStore(language)
  const report = useSource().reportAddress(run?.run ?? '', [])
  const isDark = useStore(dark)
  const names = useMemo(() => (metrics.data ?? []).map((item) => nameOf(item.run, runs)), [metrics.data, runs])
  const infos = useMemo(() => (metrics.data ?? []).map(({ run }) => runs.find((info) => info.run === run)), [metrics.data, runs])
  const settings = useMemo(() => groupable(infos), [infos])
  // Runs have no moments in common, only steps.
  const grouped = axis === 'step' && infos.length > 1 ? group : ''
  const together = useMemo(() => (grouped === '' ? null : groupsBy(grouped, infos, settings)), [grouped, infos, settings])
  const shownNames = together?.map(({ name }) => name) ?? names
  const runsShown = useMemo(() => metrics.data ?? [], [metrics.data])
  const first = useMemo(() => overview(catalogue), [catalogue, spoken])
  const groups = useMemo(() => others(runsShown, catalogue), [runsShown, catalogue, spoken])
  const found = [...first, ...groups.flatMap(({ kinds }) => kinds)].filter((kind) => isMeant(kind, metric.trim()))
  const shown: Shown = { runs: runsShown, run, axis, names: shownNames, smooth: Number(smooth) || 0, together }
  const isSearching = metric.trim() !== ''
  useEffect(() => {
    if (isSearching) onWhole()
  }, [isSearching])
  return (
    <section class="pane dashboard" aria-label={t('dashboard')}>
      <header class="dashboard-heading">
        <Tabs
          label={t('step')}
          value={axis}
          tabs={[
            ['step', t('by_step')],
            ['time', t('by_time')],
            ['tokens', t('by_tokens')],
          ]}
          onChange={(value) => go({ axis: value, from: '', to: '' }, { replace: true })}
        />
        <Zoom from={from} to={to} unit={t(UNITS[axis])} />
        <ul class="values-line">
          {shownNames.map((name, index) => (
            <li key={name}>
              <Swatch colour={colourOf(index, isDark)} dashed={false} /> {name}
            </li>
          ))}
        </ul>
        <Select
          label={t('smoothing')}
          hideLabel
          value={smooth}
          options={SMOOTHINGS.map((each): [string, string] => [each, each === '0' ? t('no_smoothing') : t('smoothed_by', { n: each })])}
          onChange={(value) => go({ smooth: value }, { replace: true })}
        />
        {settings.length > 0 && axis === 'step' && (
          <Select
            label={t('group_by')}
            hideLabel
            value={group}
            options={[['', t('each_run')], ...(settings.includes('seed') ? [[OVER_SEEDS, t('over_seeds')] as [string, string]] : []), ...settings.map((each): [string, string] => [each, t('mean_by', { key: each })])]}
            onChange={(value) => go({ group: value }, { replace: true })}
          />
        )}
        <input
          type="search"
          data-search
          class="find-metric"
          value={metric}
          placeholder={t('find_metric')}
          aria-label={t('find_metric')}
          onInput={(event) => go({ metric: event.currentTarget.value }, { replace: true })}
        />
        {metrics.data && <Latest lines={metrics.data[0]} />}
        {report && (
          <a class="button" href={report} download title={t('export_curves')}>
            {t('export')}
          </a>
        )}
      </header>
      {metrics.error ? (
        <Failure error={metrics.error} again={metrics.again} />
      ) : !metrics.data ? (
        <Loading />
      ) : metrics.data.every(({ lines }) => lines.length === 0) ? (
        <Empty title={t('no_metrics')} hint={t('no_metrics_hint')} />
      ) : (
        <div class="all-charts scroller" tabIndex={0} role="region" aria-label={t('dashboard')}>
          {metric.trim() !== '' ? (
            found.length > 0 ? <Charts kinds={found} {...shown} /> : <Empty title={t('no_metric_match')} hint={t('no_metric_match_hint')} />
          ) : (
            <>
              <Charts kinds={first} {...shown} />
              {groups.map(({ group, kinds }) => (
                <Group key={group} title={t(`group_${group}` as Word)} kinds={kinds} onOpen={onWhole} {...shown} />
              ))}
            </>
          )}
        </div>
      )}
    </section>
  )
}

/** What every chart is drawn of. */
interface Shown {
  runs: RunMetrics[]
  run: Run | null
  axis: Axis
  names: string[]
  smooth: number
  together: RunGroup[] | null
}

function Charts({ kinds, ...shown }: Shown & { kinds: ChartKind[] }) {
  return (
    <div class="charts">
      {useLater(kinds, FIRST).map((kind, index) => (
        <ChartOf key={kind.key} kind={kind} isFirst={index < FIRST} {...shown} />
      ))}
    </div>
  )
}

function ChartOf({ kind, isFirst, runs, run, axis, names, smooth, together }: Shown & { kind: ChartKind; isFirst: boolean }) {
  const setup = usesRun(kind) ? run : null
  const all = useMemo(() => {
    const each = curves(kind, runs, setup, axis).map((curve) => (smooth > 0 ? { ...curve, points: smoothed(curve.points, smooth), band: undefined } : curve))
    return together && !kind.parts ? means(each, together) : each
  }, [kind, runs, setup, axis, smooth, together])
  return <Chart kind={kind} all={all} axis={axis} names={names} isFirst={isFirst} />
}

/** The part of the axis that is shown, which a drag across a chart chooses too. */
function Zoom({ from, to, unit }: { from: string; to: string; unit: string }) {
  const field = (name: 'from' | 'to', value: string) => (
    <input
      type="number"
      step="any"
      value={value}
      placeholder={t(`axis_${name}`)}
      aria-label={`${t(`axis_${name}`)}: ${unit}`}
      onChange={(event) => go({ [name]: event.currentTarget.value }, { replace: true })}
    />
  )
  return (
    <fieldset class="zoom" title={t('zoom_hint')}>
      <legend class="unseen">{t('zoom')}</legend>
      {field('from', from)} – {field('to', to)}
      {(from !== '' || to !== '') && (
        <button class="quiet" onClick={() => go({ from: '', to: '' }, { replace: true })}>
          {t('whole_axis')}
        </button>
      )}
    </fieldset>
  )
}

/** The settings in which the runs on show differ. */
function groupable(infos: (RunInfo | undefined)[]): string[] {
  const known = infos.filter((info) => info !== undefined)
  const own = (['model', 'seed'] as const).filter((key) => new Set(known.map((info) => info[key])).size > 1)
  return [...differing(known), ...own]
}

/** Closed at first; its charts are drawn while it is open. */
function Group({ title, kinds, onOpen, ...shown }: Shown & { title: string; kinds: ChartKind[]; onOpen: () => void }) {
  const [open, setOpen] = useState(false)
  return (
    <details class="chart-group" open={open} onToggle={(event) => {
        setOpen(event.currentTarget.open)
        if (event.currentTarget.open) onOpen()
      }}>
      <summary>
        {title} <span class="faint count">{kinds.length}</span>
      </summary>
      {open && <Charts kinds={kinds} {...shown} />}
    </details>
  )
}

function Latest({ lines }: { lines: RunMetrics | undefined }) {
  const last = lines?.lines.findLast((line) => line.kind === 'train')
  if (!last) return null
  return (
    <p class="faint latest" aria-live="polite">
      {t('step')} <b>{integer(last.step)}</b> · {t('reward')} <b>{number(last.metrics['reward/mean'])}</b> ·{' '}
      <span title={t('at_work_hint')}>{t('at_work')}</span> <b>{duration(last.elapsed_s)}</b>
    </p>
  )
}

/** The experiment where it tells runs apart, with the run's time where it does not. */
function nameOf(run: string, runs: RunInfo[]): string {
  const info = runs.find((item) => item.run === run)
  if (!info) return run
  const alone = runs.filter((item) => item.experiment === info.experiment).length === 1
  return alone ? info.experiment : `${info.experiment} ${info.name}`
}
