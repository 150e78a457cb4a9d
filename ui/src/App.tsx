/** The page: its bar, its views, and what all of them show of the run that is open. */

import { useEffect, useMemo, useState } from 'preact/hooks'

import { Empty, Failure, Loading } from './common/Notice'
import { RunStatus } from './common/Status'
import { Dashboard } from './dashboard/Dashboard'
import { useMetrics } from './dashboard/useMetrics'
import type { Metric, Open, Run } from './data/types'
import { Interaction } from './episode/Interaction'
import { EpisodeList } from './episodes/EpisodeList'
import { Help } from './Help'
import { Overview } from './overview/Overview'
import { RunPane } from './runs/RunPane'
import { RunTable } from './runs/RunTable'
import { Setup } from './runs/Setup'
import { Conversations } from './served/Conversations'
import { useCommands } from './state/commands'
import { useLive } from './state/live'
import { go, openRun, usePlace, type View } from './state/place'
import { dark, language, toggleLanguage, toggleTheme } from './state/preferences'
import { useResource, useSame } from './state/resource'
import { useSource } from './state/source'
import { useStore } from './state/store'
import { t } from './text/translate'

const NO_CATALOGUE: Metric[] = []

export function App() {
  const source = useSource()
  const place = usePlace()
  const spoken = useStore(language)
  const [helping, setHelping] = useState(false)
  const open = useResource('open', () => source.open())
  const runs = useSame(useResource('runs', () => source.runs()))
  const run = useResource(place.run === null ? null : `run ${place.run}`, () => source.run(place.run ?? ''))
  const shown = place.run === null ? [] : [place.run, ...place.over]
  /** Grows when something was written to the conversations of a served model. */
  const [talked, setTalked] = useState(0)
  /** Whether more than the first charts was asked for. */
  const [whole, setWhole] = useState(false)
  const metrics = useMetrics(place.view === 'dashboard' ? shown : place.view === 'overview' ? shown.slice(0, 1) : [], whole)
  const written = useLive(runs.data ?? [], shown, {
    onRuns: runs.again,
    onStatus: () => {
      runs.again()
      run.again()
      metrics.again()
    },
    onRecorded: run.again,
    onLine: metrics.append,
    onTalk: () => {
      open.again()
      setTalked((count) => count + 1)
    },
  })

  useEffect(() => {
    const only = runs.data?.length === 1 ? runs.data[0] : undefined
    if (place.run === null && only && !['runs', 'served'].includes(place.view)) openRun(only.run, { id: place.id })
  }, [runs.data, place.run])
  useEffect(() => {
    const name = run.data?.info.experiment
    document.title = name ? `${name} · ASTuner` : 'ASTuner'
  }, [run.data])
  useCommands({
    '?': () => setHelping(true),
    '/': () => document.querySelector<HTMLElement>('[data-search]')?.focus(),
    Escape: () => setHelping(false),
    o: () => go({ view: 'overview' }),
    e: () => go({ view: 'episodes' }),
    d: () => go({ view: 'dashboard' }),
    r: () => go({ view: 'runs' }),
    c: () => open.data?.conversations && go({ view: 'served' }),
    x: toggleTheme,
  })

  const view = place.run === null && place.view !== 'served' ? 'runs' : place.view
  /** The same as long as it shows the same: hundreds of runs are not compared for each line of metrics. */
  const pane = useMemo(() => <RunPane runs={runs.data ?? []} run={run.data} />, [runs.data, run.data, spoken])
  return (
    <>
      <Bar open={open.data} run={run.data} view={view} onHelp={() => setHelping(true)} />
      {run.data && run.data.problems.length > 0 && <Problems problems={run.data.problems} />}
      {view === 'served' ? (
        <Conversations talked={talked} />
      ) : runs.error ? (
        <main class="page">
          <Failure error={runs.error} again={runs.again} />
        </main>
      ) : !runs.data ? (
        <main class="page">
          <Loading />
        </main>
      ) : view === 'runs' ? (
        <RunTable open={open.data} runs={runs.data} onChanged={runs.again} />
      ) : run.error ? (
        <main class="page">
          <Failure error={run.error} again={run.again} />
        </main>
      ) : (
        <main class={`panes view-${view} ${place.id === '' ? '' : 'has-episode'}`}>
          {pane}
          {view === 'overview' &&
            (run.data ? (
              <Overview run={run.data} metrics={metrics} catalogue={open.data?.catalogue ?? NO_CATALOGUE} written={written} />
            ) : (
              <Empty title={t('choose_run')} />
            ))}
          {view === 'episodes' && <EpisodeList run={run.data} written={written} />}
          {view === 'episodes' && <Interaction written={written} />}
          {view === 'dashboard' && <Dashboard metrics={metrics} onWhole={() => setWhole(true)} run={run.data} runs={runs.data} catalogue={open.data?.catalogue ?? NO_CATALOGUE} />}
          {view === 'setup' && (run.data ? <Setup run={run.data} over={runs.data.filter((info) => shown.includes(info.run))} /> : <Empty title={t('choose_run')} />)}
        </main>
      )}
      {helping && <Help onClose={() => setHelping(false)} />}
    </>
  )
}

interface BarProps {
  open: Open | null
  run: Run | null
  view: View
  onHelp: () => void
}

function Bar({ open, run, view, onHelp }: BarProps) {
  const source = useSource()
  const isDark = useStore(dark)
  const views: View[] = run ? ['overview', 'episodes', 'dashboard', 'setup'] : []
  return (
    <header class="bar">
      <button class="brand" onClick={() => go({ view: 'runs' })} title={t('runs')}>
        <svg width="20" height="20" viewBox="0 0 32 32" aria-hidden="true">
          <rect width="32" height="32" rx="7" />
          <path d="M10 7v18M10 12c0 5 11 2 11 9v4" />
          <circle cx="10" cy="7" r="3" />
          <circle cx="10" cy="25" r="3" />
          <circle cx="21" cy="25" r="3" />
        </svg>
        ASTuner
      </button>
      <nav class={`views ${view === 'served' ? 'of-served' : ''}`} aria-label={t('face')}>
        <button aria-current={view === 'runs' ? 'page' : undefined} onClick={() => go({ view: 'runs' })}>
          {t('runs')}
        </button>
        {open?.conversations && (
          <button class="served-view" aria-current={view === 'served' ? 'page' : undefined} title={open.conversations} onClick={() => go({ view: 'served' })}>
            {t('served')}
          </button>
        )}
        {views.map((name) => (
          <button key={name} class="run-view" aria-current={view === name ? 'page' : undefined} onClick={() => go({ view: name })}>
            {t(name)}
          </button>
        ))}
      </nav>
      {run && !['runs', 'served'].includes(view) && (
        <span class="bar-run">
          <b>{run.info.experiment}</b> <span class="faint">{run.info.name}</span> <RunStatus status={run.info.status} />
          {source.served && run.info.status === 'running' && <span class="live">{t('live')}</span>}
        </span>
      )}
      {!source.served && (
        <span class="chip" title={t('report_hint')}>
          {t('report')}
        </span>
      )}
      <span class="bar-tools">
        <span class="faint version">{open?.version}</span>
        <button onClick={toggleLanguage} lang={language.value === 'en' ? 'zh' : 'en'}>
          {t('language')}
        </button>
        <button class="icon" onClick={toggleTheme} aria-label={t(isDark ? 'theme_light' : 'theme_dark')} title={t(isDark ? 'theme_light' : 'theme_dark')}>
          {isDark ? '☀' : '☾'}
        </button>
        <button class="icon" onClick={onHelp} aria-label={t('help')} title={`${t('help')} (?)`}>
          ?
        </button>
      </span>
    </header>
  )
}

function Problems({ problems }: { problems: string[] }) {
  return (
    <details class="problems" open>
      <summary>{t('problems')}</summary>
      <ul>
        {problems.map((problem) => (
          <li key={problem}>{problem}</li>
        ))}
      </ul>
    </details>
  )
}
