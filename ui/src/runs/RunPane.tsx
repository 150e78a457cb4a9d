/** The left pane: runs, and the steps of the one on show. */

import { useMemo } from 'preact/hooks'

import type { ErrorCount, Run, RunInfo, Split, StepRow } from '../data/types'
import { Empty } from '../common/Notice'
import { RunStatus } from '../common/Status'
import { useLater } from '../state/later'
import { go, openRun, place as placeStore, usePlace } from '../state/place'
import { integer, number, rate } from '../text/format'
import { t } from '../text/translate'
import { distinctions } from './columns'

/** Runs that are listed at once: those in sight. */
const FIRST = 20

interface Props {
  runs: RunInfo[]
  run: Run | null
}

export function RunPane({ runs, run }: Props) {
  const { view, over } = usePlace()
  const labels = useMemo(() => distinctions(runs), [runs])
  return (
    <nav class="pane run-pane" aria-label={t('runs')}>
      <h2 class="pane-title">{t('runs')}</h2>
      {runs.length === 0 && <Empty title={t('no_runs')} hint={t('no_runs_hint')} />}
      <ul class="run-list">
        {useLater(runs, FIRST).map((info) => (
          <RunItem key={info.run} info={info} label={labels.get(info.run)} here={info.run === run?.run} canLayOver={view === 'dashboard'} isOver={over.includes(info.run)} />
        ))}
      </ul>
      {run && view === 'episodes' && <Steps run={run} />}
    </nav>
  )
}

interface ItemProps {
  info: RunInfo
  /** What tells it from the others of its experiment. */
  label: string | undefined
  here: boolean
  canLayOver: boolean
  isOver: boolean
}

function RunItem({ info, label, here, canLayOver, isOver }: ItemProps) {
  const layOver = (wanted: boolean): void => {
    const { over } = placeStore.value
    go({ over: wanted ? [...over, info.run] : over.filter((run) => run !== info.run) }, { replace: true })
  }
  return (
    <li class={here ? 'here' : ''}>
      <button class="run-item" aria-current={here ? 'true' : undefined} onClick={() => !here && openRun(info.run)}>
        <span class="run-name">{info.experiment}</span>
        {label && (
          <span class="run-label" title={label}>
            {label}
          </span>
        )}
        <span class="faint run-time">{info.name}</span>
        <span class="run-facts">
          <RunStatus status={info.status} />
          {info.steps !== null && <span>{t('of_steps', { n: integer(info.steps) })}</span>}
          <span class="end" title={t('reward')}>
            {info.reward !== null && number(info.reward, 3)}
          </span>
        </span>
      </button>
      {canLayOver && !here && (
        <label class="over" title={t('over_hint')}>
          <input type="checkbox" checked={isOver} onChange={(event) => layOver(event.currentTarget.checked)} /> {t('over')}
        </label>
      )}
    </li>
  )
}

function Steps({ run }: { run: Run }) {
  const { split, step } = usePlace()
  const isAll = split === '' && step === ''
  const open = (wanted: Split | '', number: string): void => go({ split: wanted, step: number, id: '' })
  return (
    <>
      <h2 class="pane-title steps-title">
        {t('steps')}
        <span>
          {t('success')} · {t('reward')}
        </span>
      </h2>
      <ul class="step-list">
        <li class={isAll ? 'here' : ''}>
          <button aria-current={isAll ? 'true' : undefined} onClick={() => open('', '')}>
            <span>{t('all_episodes')}</span>
            <span class="number">{integer(run.steps.reduce((sum, row) => sum + row.episodes + row.errors, 0))}</span>
          </button>
        </li>
        {run.steps.map((row) => (
          <StepItem
            key={`${row.split} ${row.step}`}
            row={row}
            errors={run.errors.filter((error) => error.split === row.split && error.step === row.step)}
            here={split === row.split && step === String(row.step)}
            open={() => open(row.split, String(row.step))}
          />
        ))}
      </ul>
    </>
  )
}

function StepItem({ row, errors, here, open }: { row: StepRow; errors: ErrorCount[]; here: boolean; open: () => void }) {
  const success = row.episodes > 0 ? row.successes / row.episodes : null
  return (
    <li class={here ? 'here' : ''}>
      <button aria-current={here ? 'true' : undefined} onClick={open}>
        <span>
          {row.step} <span class={`split split-${row.split}`}>{t(row.split)}</span>
        </span>
        <span class="number">
          {row.errors > 0 && (
            <span class="warn" title={errors.map(({ error_type, count }) => `${error_type}: ${count}`).join('\n')}>
              {row.errors}!{' '}
            </span>
          )}
          <span title={t('success')}>{rate(success)}</span> · {number(row.reward, 3)}
        </span>
        <meter min={0} max={1} value={success ?? 0} aria-hidden="true" />
      </button>
    </li>
  )
}
